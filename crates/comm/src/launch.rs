//! Who this process is among those that a launcher started, by the environment.

use dittograd_numerics::error::{Error, ErrorKind, Result, shown_name};
use std::fmt;

/// More ranks than anybody starts: larger numbers are mistakes.
const MOST_RANKS: usize = 1 << 16;

/// What a launcher says to a process: its number, how many there are, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number of this process among those of its machine, if it is said.
    pub local_rank: Option<usize>,
    /// The number of processes on this machine, if it is said.
    pub local_size: Option<usize>,
    /// What started it: `mpirun`, `mpiexec`, `srun`, `torchrun`, or `RANK` for variables set by hand.
    pub by: &'static str,
    /// What the launcher calls this run. Processes of other runs are turned away.
    pub run: String,
    /// Where rank 0 listens, if that is known.
    pub address: Option<Address>,
}

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{}:{port}", shown_name(host))
        }
    }
}

/// A variable and its value.
type Given = (&'static str, String);

/// The variables of a process, of which empty ones count as not set.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn text(&self, name: &'static str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    #[track_caller]
    fn number(&self, name: &'static str, want: &'static str, most: usize) -> Result<Option<usize>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(n) if n <= most => Ok(Some(n)),
            _ => Err(Error::new("launch", ErrorKind::Env { name, value: shown_name(&value), want })),
        }
    }

    #[track_caller]
    fn rank(&self, name: &'static str) -> Result<Option<usize>> {
        self.number(name, "the number of a process, from 0", MOST_RANKS)
    }

    #[track_caller]
    fn size(&self, name: &'static str) -> Result<Option<usize>> {
        self.number(name, "a number of processes, at most 65536", MOST_RANKS)
    }

    /// The first of these that is set.
    fn first(&self, names: &[&'static str]) -> Option<Given> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// The rank and the number of processes, both or none.
    #[track_caller]
    fn place(&self, rank: &'static str, size: &'static str) -> Result<Option<(usize, usize)>> {
        match (self.rank(rank)?, self.size(size)?) {
            (None, None) => Ok(None),
            (Some(r), Some(n)) if r < n => Ok(Some((r, n))),
            (Some(r), Some(n)) => {
                let why = format!("is {r}, and {size} is {n}: ranks are counted from 0 to {size} - 1");
                Err(Error::argument("launch", rank, why))
            }
            (Some(r), None) => {
                let why = format!("is {r}, but {size} is not set; set both, or none to run alone");
                Err(Error::argument("launch", rank, why))
            }
            (None, Some(n)) => {
                let why = format!("is {n}, but {rank} is not set; set both, or none to run alone");
                Err(Error::argument("launch", size, why))
            }
        }
    }
}

impl Launch {
    /// What the launcher of this process said; `None` if it runs alone. Known are `mpirun` and `mpiexec` (Open MPI, MPICH, Intel MPI),
    /// `srun`, `torchrun`, and the variables `RANK` and `WORLD_SIZE` set by hand.
    #[track_caller]
    pub fn from_env() -> Result<Option<Launch>> {
        Launch::from_variables(&|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// [`Launch::from_env`] in an environment of any kind.
    #[doc(hidden)]
    #[track_caller]
    pub fn from_variables(variables: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let env = Variables(variables);
        // Torchrun starts processes itself, whatever started it.
        if env.text("TORCHELASTIC_RUN_ID").is_some()
            && let Some(launch) = torchrun(&env)?
        {
            return Ok(Some(launch));
        }
        let launcher = match open_mpi(&env)? {
            None => match mpich(&env)? {
                None => slurm(&env)?,
                found => found,
            },
            found => found,
        };
        let hand = by_hand(&env)?;
        match (hand, launcher) {
            (Some(hand), Some(other)) if (hand.rank, hand.size) != (other.rank, other.size) => {
                let why = format!(
                    "RANK and WORLD_SIZE say rank {} of {}, and {} says rank {} of {}; unset RANK and WORLD_SIZE",
                    hand.rank, hand.size, other.by, other.rank, other.size
                );
                Err(Error::argument("launch", "RANK", why))
            }
            (_, Some(launch)) => Ok(Some(launch)),
            (Some(launch), None) => {
                // Where one is alone, nobody meets.
                if launch.address.is_none() && launch.size > 1 {
                    let why = "MASTER_ADDR and MASTER_PORT are not both set; set them to the machine of rank 0 and a free port there";
                    return Err(Error::argument("launch", "MASTER_ADDR", why));
                }
                Ok(Some(launch))
            }
            (None, None) => match env.text("PMIX_RANK") {
                Some(rank) => {
                    let why = format!(
                        "is {}, but no variable says how many processes there are; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each",
                        shown_name(&rank)
                    );
                    Err(Error::argument("launch", "PMIX_RANK", why))
                }
                None => Ok(None),
            },
        }
    }
}

/// The port that MASTER_PORT says.
#[track_caller]
fn master_port(env: &Variables<'_>) -> Result<Option<u16>> {
    let want = "a port, from 1 to 65535";
    match env.number("MASTER_PORT", want, u16::MAX as usize)? {
        Some(0) => Err(Error::new("launch", ErrorKind::Env { name: "MASTER_PORT", value: "0".into(), want })),
        port => Ok(port.map(|p| p as u16)),
    }
}

/// A hash of a text, the same for all processes of a run (FNV-1a).
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// The address by MASTER_ADDR and MASTER_PORT. What of them is not set is the host given, and a port that the name of the run chooses,
/// below those that systems give out.
#[track_caller]
fn address(env: &Variables<'_>, host: Option<String>, run: Option<&str>) -> Result<Option<Address>> {
    let (first, count) = (15_000, 16_000);
    let chosen = run.map(|run| (first + hash(run) % count) as u16);
    let (host, port) = (env.text("MASTER_ADDR").or(host), master_port(env)?.or(chosen));
    Ok(host.zip(port).map(|(host, port)| Address { host, port }))
}

/// Where processes of one machine meet.
const HERE: &str = "127.0.0.1";

fn by_hand(env: &Variables<'_>) -> Result<Option<Launch>> {
    let Some((rank, size)) = env.place("RANK", "WORLD_SIZE")? else { return Ok(None) };
    Ok(Some(Launch {
        rank,
        size,
        local_rank: env.rank("LOCAL_RANK")?,
        local_size: env.size("LOCAL_WORLD_SIZE")?,
        by: "RANK",
        run: String::new(),
        address: address(env, None, None)?,
    }))
}

fn torchrun(env: &Variables<'_>) -> Result<Option<Launch>> {
    let Some(mut launch) = by_hand(env)? else { return Ok(None) };
    let part = |name| env.text(name).unwrap_or_default();
    launch.by = "torchrun";
    launch.run = format!("{}, start {}", part("TORCHELASTIC_RUN_ID"), part("TORCHELASTIC_RESTART_COUNT"));
    // Its own store listens at MASTER_PORT.
    if part("TORCHELASTIC_USE_AGENT_STORE") == "True"
        && let Some(address) = &mut launch.address
    {
        address.port = if address.port == u16::MAX { address.port - 1 } else { address.port + 1 };
    }
    Ok(Some(launch))
}

fn open_mpi(env: &Variables<'_>) -> Result<Option<Launch>> {
    let Some((rank, size)) = env.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")? else {
        return Ok(None);
    };
    let local_size = env.size("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let run = env.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]).map(|(_, name)| name);
    let host = (local_size == Some(size)).then(|| HERE.to_string());
    Ok(Some(Launch {
        rank,
        size,
        local_rank: env.rank("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size,
        by: "mpirun",
        address: address(env, host, run.as_deref())?,
        run: run.unwrap_or_default(),
    }))
}

fn mpich(env: &Variables<'_>) -> Result<Option<Launch>> {
    let Some((rank, size)) = env.place("PMI_RANK", "PMI_SIZE")? else { return Ok(None) };
    // Slurm's own, which says more.
    if let Some(launch) = slurm(env)?
        && (launch.rank, launch.size) == (rank, size)
    {
        return Ok(Some(launch));
    }
    let local_size = env.size("MPI_LOCALNRANKS")?;
    let host = (local_size == Some(size)).then(|| HERE.to_string());
    Ok(Some(Launch {
        rank,
        size,
        local_rank: env.rank("MPI_LOCALRANKID")?,
        local_size,
        by: "mpiexec",
        run: String::new(),
        address: address(env, host, None)?,
    }))
}

/// A step of several tasks. A batch script, and a shell that `srun` opened, have variables of Slurm too, and are alone.
fn slurm(env: &Variables<'_>) -> Result<Option<Launch>> {
    let Some(step) = env.text("SLURM_STEP_ID") else { return Ok(None) };
    let tasks = env.first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]).map_or("SLURM_NTASKS", |(name, _)| name);
    if env.size(tasks)?.is_none_or(|n| n < 2) {
        return Ok(None);
    }
    let Some((rank, size)) = env.place("SLURM_PROCID", tasks)? else { return Ok(None) };
    let nodes = env.first(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"]).map(|(_, n)| n);
    let alone = nodes.as_deref() == Some("1");
    let host = match env.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]) {
        // MASTER_ADDR goes first, whatever is here.
        _ if alone || env.text("MASTER_ADDR").is_some() => Some(HERE.to_string()),
        Some((name, list)) => Some(first_host(&list).ok_or_else(|| {
            let want =
                "a list of machines such as n[01-04,7],m3; or set MASTER_ADDR to the machine of rank 0";
            Error::new("launch", ErrorKind::Env { name, value: shown_name(&list), want })
        })?),
        None => None,
    };
    let run = format!("{}.{step}", env.text("SLURM_JOB_ID").unwrap_or_default());
    Ok(Some(Launch {
        rank,
        size,
        local_rank: env.rank("SLURM_LOCALID")?,
        local_size: alone.then_some(size),
        by: "srun",
        address: address(env, host, Some(&run))?,
        run,
    }))
}

/// The first machine of a list such as `n[01-04,7],m3` or `rack[1-2]n[1-4]-ib`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list);
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(ranges) = rest[end..].strip_prefix('[') else { break };
        let (inside, after) = ranges.split_once(']')?;
        let first = &inside[..inside.find(['-', ',']).unwrap_or(inside.len())];
        if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (!host.is_empty() && host.bytes().all(fits)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process of these variables is.
    fn of(variables: &str) -> Result<Option<Launch>> {
        let pairs: Vec<(&str, &str)> =
            variables.split_whitespace().filter_map(|v| v.split_once('=')).collect();
        Launch::from_variables(&|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
        })
    }

    /// Rank, size, local rank, launcher and address as one line.
    fn line(launch: &Launch) -> String {
        let show = |n: Option<usize>| n.map_or("-".to_string(), |n| n.to_string());
        let address = launch.address.as_ref().map_or("-".to_string(), Address::to_string);
        let Launch { rank, size, by, .. } = launch;
        format!("{rank}/{size} {} {} {by} {address}", show(launch.local_rank), show(launch.local_size))
    }

    const OMPI: &str =
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_NAMESPACE=864485377";
    const SLURM: &str = "SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=9 SLURM_LOCALID=1";
    const TORCH: &str =
        "TORCHELASTIC_RUN_ID=none RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1";
    const HAND: &str = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=5000";

    #[test]
    fn launchers_say_who_a_process_is() {
        let job = 15_000 + hash("864485377") % 16_000;
        let step = 15_000 + hash("77.0") % 16_000;
        for (variables, want) in [
            (OMPI.to_string(), "1/4 1 - mpirun -".to_string()),
            (format!("{OMPI} OMPI_COMM_WORLD_LOCAL_SIZE=4"), format!("1/4 1 4 mpirun 127.0.0.1:{job}")),
            (format!("{OMPI} OMPI_COMM_WORLD_LOCAL_SIZE=2"), "1/4 1 2 mpirun -".into()),
            (format!("{OMPI} MASTER_ADDR=n7"), format!("1/4 1 - mpirun n7:{job}")),
            (format!("{OMPI} MASTER_ADDR=fe80::1 MASTER_PORT=99"), "1/4 1 - mpirun [fe80::1]:99".into()),
            // Mpirun starts its own helpers by srun, and one process is a world too.
            (format!("{SLURM} {OMPI}"), "1/4 1 - mpirun -".into()),
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1".into(), "0/1 - - mpirun -".into()),
            ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2".into(), "1/2 1 2 mpiexec -".into()),
            (
                "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_PORT=7".into(),
                "1/2 0 2 mpiexec 127.0.0.1:7".into(),
            ),
            (format!("{SLURM} SLURM_STEP_NODELIST=n[01-04,7],m3"), format!("3/4 1 - srun n01:{step}")),
            (format!("{SLURM} SLURM_STEP_NUM_NODES=1"), format!("3/4 1 4 srun 127.0.0.1:{step}")),
            (format!("{SLURM} PMIX_RANK=3 MASTER_ADDR=a MASTER_PORT=1"), "3/4 1 - srun a:1".into()),
            (
                format!("{SLURM} PMI_RANK=3 PMI_SIZE=4 SLURM_STEP_NUM_NODES=1"),
                format!("3/4 1 4 srun 127.0.0.1:{step}"),
            ),
            (format!("{TORCH} MASTER_PORT=29500"), "2/4 0 2 torchrun n1:29500".into()),
            (
                format!("{TORCH} MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True"),
                "2/4 0 2 torchrun n1:29501".into(),
            ),
            (
                format!("{TORCH} MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True"),
                "2/4 0 2 torchrun n1:65534".into(),
            ),
            (
                format!("{TORCH} MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False {SLURM}"),
                "2/4 0 2 torchrun n1:29500".into(),
            ),
            (HAND.into(), "0/2 - - RANK 10.0.0.1:5000".into()),
            (format!("{HAND} LOCAL_RANK=1"), "0/2 1 - RANK 10.0.0.1:5000".into()),
            ("RANK=0 WORLD_SIZE=1".into(), "0/1 - - RANK -".into()),
            // Variables that say the same as a launcher.
            (format!("{SLURM} RANK=3 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1"), "3/4 1 - srun a:1".into()),
        ] {
            let launch = of(&variables).unwrap().unwrap();
            assert_eq!(line(&launch), want, "{variables}");
        }
        for alone in [
            "",
            "MASTER_ADDR=n1 MASTER_PORT=5000",
            "RANK= WORLD_SIZE=",
            // A batch script, and shells.
            "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0",
            "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0",
            "SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4",
        ] {
            assert_eq!(of(alone).unwrap(), None, "{alone}");
        }
    }

    #[test]
    fn runs_have_names_of_their_own() {
        let run = |variables: &str| of(variables).unwrap().unwrap().run;
        let torch = format!("{TORCH} MASTER_PORT=29500");
        assert_ne!(run(&torch), run(&format!("{torch} TORCHELASTIC_RESTART_COUNT=1")));
        assert_eq!(run(OMPI), "864485377");
        assert_eq!(run(&format!("{SLURM} SLURM_STEP_NUM_NODES=1")), "77.0");
    }

    #[test]
    fn what_launchers_cannot_have_said_is_refused() {
        for (variables, words) in [
            ("RANK=1", "RANK: is 1, but WORLD_SIZE is not set"),
            ("WORLD_SIZE=2", "WORLD_SIZE: is 2, but RANK is not set"),
            ("RANK=2 WORLD_SIZE=2", "RANK: is 2, and WORLD_SIZE is 2"),
            ("RANK=0 WORLD_SIZE=0", "RANK: is 0, and WORLD_SIZE is 0"),
            ("RANK=x WORLD_SIZE=2", "RANK=x is not understood, use the number of a process"),
            ("RANK=-1 WORLD_SIZE=2", "RANK=-1 is not understood"),
            ("RANK=0 WORLD_SIZE=99999999999", "WORLD_SIZE=99999999999 is not understood"),
            ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR: MASTER_ADDR and MASTER_PORT are not both set"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "are not both set"),
            ("RANK=0 WORLD_SIZE=2 MASTER_PORT=5", "are not both set"),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0",
                "MASTER_PORT=0 is not understood, use a port",
            ),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536", "MASTER_PORT=65536 is not understood"),
            ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set"),
            ("PMI_RANK=0", "PMI_SIZE is not set"),
            ("PMIX_RANK=0", "PMIX_RANK: is 0, but no variable says how many"),
            ("SLURM_STEP_ID=0 SLURM_NTASKS=4", "SLURM_NTASKS: is 4, but SLURM_PROCID is not set"),
            (
                "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_NODELIST=n[",
                "SLURM_STEP_NODELIST=n[ is not understood, use a list of machines",
            ),
        ] {
            let error = of(variables).unwrap_err().to_string();
            assert!(error.starts_with("launch") && error.contains(words), "{variables}: {error}");
        }
        let error = of(&format!("{OMPI} {HAND}")).unwrap_err().to_string();
        assert!(
            error.contains("RANK and WORLD_SIZE say rank 0 of 2, and mpirun says rank 1 of 4"),
            "{error}"
        );
    }

    #[test]
    fn the_first_of_a_list_of_machines() {
        for (list, want) in [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("n[01-04,7],m3", Some("n01")),
            ("n[7,1-4]", Some("n7")),
            ("rack[1-2]n[3-4]-ib,x", Some("rack1n3-ib")),
            ("a.b-c_d.example.org", Some("a.b-c_d.example.org")),
            ("", None),
            ("n[", None),
            ("n[]", None),
            ("n[a-b]", None),
            ("n]1", None),
            (",n1", None),
        ] {
            assert_eq!(first_host(list).as_deref(), want, "{list}");
        }
    }
}
