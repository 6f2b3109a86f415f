//! Many processes, one run: which of them this one is, what it takes of the machine, and how all of them end.
//!
//! Rank 0 speaks for all. Before and after training the ranks [agree](Ranks::agree): an error of any of them ends all with the same exit
//! code, and is said once. While they train, an error of one is an abort, which the others notice in their next exchange.

use crate::out::{self, warn};
use crate::{Answer, Fail};
use dittograd::device::Device;
use dittograd::device::cuda::Cuda;
use dittograd::error::{Error, ErrorKind};
use dittograd::parallel::World;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::time::Duration;

/// How long a rank waits for another that does not move, unless said otherwise. At the end it waits so long in any case, since rank 0
/// draws pictures meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// The variables by which launchers of MPI programs tell the number of processes.
#[cfg(feature = "mpi")]
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// The ranks of a run, seen from one of them.
pub(crate) struct Ranks {
    pub(crate) world: World,
    places: Vec<Place>,
    /// Whether an error has to interrupt exchanges of other ranks.
    is_training: Cell<bool>,
    timeout: Cell<Duration>,
    /// After the world, which is dropped first.
    _origin: Origin,
}

/// Where a rank runs.
#[derive(Serialize, Deserialize)]
struct Place {
    host: String,
    /// Tells machines of one name apart.
    boot: String,
    /// The processors that it may use.
    cores: String,
    /// The GPUs that it may use, if they were chosen for it.
    gpus: Option<String>,
}

impl Place {
    fn here() -> Place {
        let line = |path: &str| read_to_string(path).unwrap_or_default().trim().to_string();
        let status = line("/proc/self/status");
        let cores = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        Place {
            host: line("/proc/sys/kernel/hostname"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            cores: cores.trim().to_string(),
            gpus: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        }
    }

    fn is_same_machine(&self, other: &Place) -> bool {
        (&self.host, &self.boot) == (&other.host, &other.boot)
    }
}

/// A rank and what it computes on, for people.
#[derive(Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) device: String,
    pub(crate) threads: usize,
}

/// Ways to exchange messages that this program was built with.
pub(crate) fn transports() -> Vec<String> {
    vec![
        #[cfg(feature = "mpi")]
        format!("mpi ({})", crate::mpi::short(&crate::mpi::library())),
        "tcp".into(),
    ]
}

/// Whether a launcher of MPI programs started this process.
#[cfg(feature = "mpi")]
fn is_of_mpi() -> bool {
    // Images of containers set other variables of theirs for processes that no launcher started.
    let ranks = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    ranks.iter().any(|name| std::env::var_os(name).is_some())
}

/// The number of processes that a launcher of MPI programs started.
#[cfg(feature = "mpi")]
fn started() -> Option<usize> {
    SIZES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Where a world comes from that must outlive it.
#[cfg(feature = "mpi")]
type Origin = Option<crate::mpi::Runtime>;
#[cfg(not(feature = "mpi"))]
type Origin = ();

/// This process's place among others, if it was started as one of many.
fn world() -> Answer<Option<(World, Origin)>> {
    #[cfg(feature = "mpi")]
    if is_of_mpi() {
        let (runtime, transport) = crate::mpi::start()?;
        let (size, name) = (transport.size(), transport.name());
        if let Some(started) = started().filter(|n| *n > size) {
            return crate::fail(format!(
                "{started} processes were started, but {name} sees {size}; use the launcher of the MPI library that the \
                 program was built with"
            ));
        }
        return Ok(Some((World::new(transport)?, Some(runtime))));
    }
    Ok(World::from_env()?.map(|world| (world, Origin::default())))
}

impl Ranks {
    /// The ranks, if this process was started as one of many.
    pub(crate) fn start() -> Answer<Option<Ranks>> {
        let Some((world, origin)) = world()? else { return Ok(None) };
        out::speak_as(world.rank());
        let places = gather(&world, &Place::here())?;
        Ok(Some(Ranks {
            world,
            places,
            is_training: Cell::new(false),
            timeout: Cell::new(TIMEOUT),
            _origin: origin,
        }))
    }

    /// Sets how long the others may make no progress.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
        self.world.set_timeout(timeout);
    }

    /// Whether this rank prints, draws and writes.
    pub(crate) fn leads(&self) -> bool {
        self.world.rank() == 0
    }

    fn here(&self) -> &Place {
        &self.places[self.world.rank()]
    }

    /// The number of ranks on this machine before this one.
    fn local_rank(&self) -> usize {
        let before = &self.places[..self.world.rank()];
        before.iter().filter(|p| p.is_same_machine(self.here())).count()
    }

    /// The threads of this rank if nobody says how many: the cores that it may use are shared with the ranks that may use the
    /// same.
    pub(crate) fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let here = self.here();
        let is_sharing = |p: &&Place| p.is_same_machine(here) && p.cores == here.cores;
        let sharing = self.places.iter().filter(is_sharing).count();
        (cores / sharing.max(1)).max(1)
    }

    /// The GPU of this rank if nobody says which: the ranks of a machine take them in turn.
    pub(crate) fn gpu(&self) -> Result<Device, Error> {
        Device::cuda(self.local_rank() % Cuda::count()?.max(1))
    }

    /// All ranks and what they compute on.
    pub(crate) fn members(&self, device: &str, threads: usize) -> Answer<Vec<Member>> {
        let (rank, host) = (self.world.rank(), self.here().host.clone());
        gather(&self.world, &Member { rank, host, device: device.into(), threads })
    }

    /// Lets rank 0 say which ranks share a GPU.
    pub(crate) fn note_shared(&self, members: &[Member]) {
        // A GPU has its number among those that a process may see.
        let gpu = |m: &Member| {
            let Place { host, boot, gpus, .. } = &self.places[m.rank];
            m.device.starts_with("cuda").then(|| (host.clone(), m.device.clone(), boot.clone(), gpus.clone()))
        };
        let mut sharing: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for member in members.iter().filter(|_| self.leads()) {
            if let Some(gpu) = gpu(member) {
                sharing.entry(gpu).or_default().push(member.rank.to_string());
            }
        }
        for ((host, device, ..), ranks) in sharing.iter().filter(|(_, ranks)| ranks.len() > 1) {
            let ranks = ranks.join(", ");
            warn(&format!("ranks {ranks} share {device} of {host} and compute there one after the other"));
        }
    }

    /// Lets NCCL move the words of GPUs, if the ranks have some.
    pub(crate) fn use_nccl(&self, device: &Device, members: &[Member]) -> Answer<()> {
        let is_gpu = |m: &Member| m.device.starts_with("cuda");
        if members.iter().any(is_gpu) {
            self.world.use_nccl(device)?;
        }
        if let Some(note) = self.world.note().filter(|_| self.leads() && members.iter().all(is_gpu)) {
            warn(&format!("{note}; gradients go through host memory"));
        }
        Ok(())
    }

    /// What this rank has, if all ranks have something. Otherwise all of them fail, and those say why that have a reason, unless a
    /// rank before them has the same.
    pub(crate) fn agree<T>(&self, mine: Answer<T>) -> Answer<T> {
        let why = match &mine {
            Ok(_) => None,
            Err(end) => Some(end.message().unwrap_or_default()),
        };
        let all: Vec<Option<String>> = gather(&self.world, &why)?;
        let first = all.iter().position(|other| *other == why);
        match mine {
            Ok(mine) if all.iter().all(Option::is_none) => Ok(mine),
            Err(end) if first == Some(self.world.rank()) => Err(end),
            _ => Err(Fail::Told),
        }
    }

    /// What rank 0 has.
    pub(crate) fn broadcast<T: Serialize + for<'de> Deserialize<'de>>(&self, mine: &T) -> Answer<T> {
        Ok(gather(&self.world, mine)?.swap_remove(0))
    }

    /// Trains. An error there interrupts the others, but for a loss that is not finite, which all of them find.
    pub(crate) fn train<T>(&self, f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.is_training.set(true);
        let trained = f();
        let is_of_all = |e: &Error| matches!(e.kind(), ErrorKind::NotFinite { .. });
        self.is_training.set(trained.as_ref().is_err_and(|e| !is_of_all(e)));
        trained
    }

    /// The end of a training, which all ranks have in common unless it was interrupted.
    pub(crate) fn agree_unless_interrupted<T>(&self, mine: Answer<T>) -> Answer<T> {
        if self.is_training.get() { mine } else { self.agree(mine) }
    }

    /// Ends this rank together with the others. Returns the exit code of all of them.
    pub(crate) fn finish(self, mine: u8, why: Option<&str>) -> u8 {
        if self.is_training.get() {
            self.world.abort(why.unwrap_or("stdout is closed"));
            return 2;
        }
        self.world.set_timeout(TIMEOUT.max(self.timeout.get()));
        match gather(&self.world, &mine) {
            Ok(all) => all.into_iter().max().unwrap_or(mine),
            Err(end) => {
                // An error before this one says more.
                if let (Some(why), None) = (end.message(), why) {
                    warn(&why);
                }
                2
            }
        }
    }
}

/// What each rank has, by rank.
fn gather<T: Serialize + for<'de> Deserialize<'de>>(world: &World, mine: &T) -> Answer<Vec<T>> {
    let wrong = |e: serde_json::Error| Fail::Message(format!("the ranks do not understand each other: {e}"));
    let all = world.all_gather(&serde_json::to_vec(mine).map_err(wrong)?)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(wrong)).collect()
}
