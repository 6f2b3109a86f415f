//! Memory of GPUs by NCCL, beside a host transport that carries everything else.
//!
//! NCCL only moves: sends and receives in one group, no sums. Before each exchange the ranks tell each other over the host
//! transport what they send. So a rank that is late, gone or out of step is found and named there, with the timeout
//! of that transport, and no kernel of NCCL waits on the GPU for a rank that still computes. What can go wrong after that is a rank that dies
//! within the exchange: the work is polled until the timeout, then aborted, and the host transport is asked who is missing.
//!
//! - this file: how ranks agree to use NCCL, or why they do not, and the transport;
//! - `communicator`: a communicator and its exchanges;
//! - `entry`: the table of entry points;
//! - `fake`: NCCL in host memory, for tests.

mod communicator;
mod entry;
#[doc(hidden)]
pub mod fake;

pub use entry::Entry;

use crate::transport::{Incoming, OnDevice, Outgoing, Transport};
use communicator::{Communicator, LATE, Trouble};
use dittograd_device::Device;
use dittograd_device::cuda::{Cuda, Mark};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use entry::UniqueId;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of what a rank says about itself while they agree.
const RECORD: usize = 512;
/// How long ranks have to answer that they are still there.
const GRACE: Duration = Duration::from_secs(5);
/// What two ranks tell each other before an exchange: the bytes that one sends and a number that depends on all their lengths, and
/// the same of what it expects. Nothing but ones: it gives the exchange up.
type Announcement = [u8; 32];
const GIVEN_UP: Announcement = [255; 32];

/// A host transport, with NCCL for memory of `device`, the GPU of this rank. All ranks call it. Where NCCL cannot be used, it is the
/// host transport alone, on all ranks, and [`Transport::note`] says why: it is not installed, a rank has no GPU, or two ranks
/// have the same one. The environment variable `DITTOGRAD_NCCL` names the folder or file of NCCL; `off` does without.
#[track_caller]
pub fn nccl(host: Box<dyn Transport>, device: &Device, timeout: Duration) -> Result<Box<dyn Transport>> {
    let library = match std::env::var("DITTOGRAD_NCCL") {
        Ok(value) if value == "off" => Err("has DITTOGRAD_NCCL=off".to_string()),
        _ => entry::system().map_err(|error| match error.kind() {
            ErrorKind::Library { looked, .. } => {
                let opened = looked.iter().find(|place| place.contains('('));
                format!("found no NCCL ({})", opened.map_or("looked for libnccl.so.2", |place| place))
            }
            _ => error.to_string(),
        }),
    };
    nccl_by(library, host, device, timeout)
}

/// The version of NCCL that was found, like `2.21.5`. Errors with [`ErrorKind::Library`] where there is none, and says where it was
/// looked for.
#[track_caller]
pub fn nccl_version() -> Result<String> {
    let library = entry::system()?;
    let told = library.version();
    told.map(shown).map_err(|code| Error::unsupported("nccl", format!("no version: {}", library.text(code))))
}

fn shown(version: i32) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}

/// Like [`nccl`], with the library given, or the reason why there is none.
#[doc(hidden)]
#[track_caller]
pub fn nccl_by(
    library: Result<Arc<dyn Entry>, String>,
    mut host: Box<dyn Transport>,
    device: &Device,
    timeout: Duration,
) -> Result<Box<dyn Transport>> {
    let (rank, size) = (host.rank(), host.size());
    if size < 2 {
        return Ok(host);
    }
    let able =
        library.and_then(|library| introduce(&*library, device).map(|(cuda, text)| (library, cuda, text)));
    let said = match &able {
        Ok((_, _, text)) => format!("gpu {text}"),
        Err(why) => format!("no {why}"),
    };
    let all = gather(&mut *host, &said, timeout)?;
    let (library, cuda) = match (able, obstacle(&all)) {
        (Ok((library, cuda, _)), None) => (library, cuda),
        (_, note) => return Ok(Box::new(Nccl { host, comm: None, note, version: String::new() })),
    };
    // Rank 0 makes the number that they meet by.
    let made = if rank == 0 {
        library.unique_id().map_err(|code| library.text(code))
    } else {
        Ok(UniqueId([0; 128]))
    };
    let id = share_id(&mut *host, &made, timeout)?;
    let joined = match id {
        Ok(id) => Communicator::join(library.clone(), cuda, id, rank, size, timeout),
        Err(why) => Err(why),
    };
    let outcome = joined.as_ref().map_or_else(|why| why.clone(), |_| String::new());
    // Those who wait for a rank that failed at once come later by the timeout.
    let all = gather(&mut *host, &outcome, timeout * 2 + GRACE)?;
    // A rank that has only waited for another is not the one to name.
    let mut failed: Vec<(usize, &String)> =
        all.iter().enumerate().filter(|(_, why)| !why.is_empty()).collect();
    failed.sort_by_key(|(_, why)| why.starts_with(LATE));
    let note = failed.first().map(|(rank, why)| format!("NCCL did not start on rank {rank}: {why}"));
    let comm = joined.ok().filter(|_| note.is_none());
    let version = shown(library.version().unwrap_or(0));
    Ok(Box::new(Nccl { host, comm, note, version }))
}

/// The GPU of a rank, and how it tells others of it: number, NCCL's version, host.
fn introduce(library: &dyn Entry, device: &Device) -> Result<(Arc<Cuda>, String), String> {
    let cuda = device.as_cuda().ok_or_else(|| format!("computes on {device}"))?;
    let uuid = cuda.uuid().map_err(|error| error.to_string())?;
    let number: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let version = library.version().map_err(|code| library.text(code))?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok((cuda.clone(), format!("{number} {version} {}", host.trim())))
}

/// Why NCCL cannot be used, by what all ranks said. All come to the same answer.
fn obstacle(all: &[String]) -> Option<String> {
    let mut gpus: Vec<Vec<&str>> = Vec::new();
    for (rank, said) in all.iter().enumerate() {
        let Some(text) = said.strip_prefix("gpu ") else {
            return Some(format!("rank {rank} {}", said.strip_prefix("no ").unwrap_or(said)));
        };
        let gpu: Vec<&str> = text.splitn(3, ' ').collect();
        if let Some(first) = gpus.iter().position(|other| other.first() == gpu.first()) {
            let host = gpu.get(2).copied().unwrap_or_default();
            return Some(format!("ranks {first} and {rank} have the same GPU, on {host}"));
        }
        gpus.push(gpu);
    }
    let other = gpus.iter().position(|gpu| gpu.get(1) != gpus.first().and_then(|first| first.get(1)))?;
    let version = |rank: usize| gpus[rank].get(1).copied().unwrap_or_default();
    Some(format!("NCCL of rank 0 has version {}, that of rank {other} {}", version(0), version(other)))
}

/// What each rank says, by rank, cut off at [`RECORD`] bytes.
#[track_caller]
fn gather(host: &mut dyn Transport, mine: &str, timeout: Duration) -> Result<Vec<String>> {
    let mut record = [0; RECORD];
    let length = mine.len().min(RECORD);
    record[..length].copy_from_slice(&mine.as_bytes()[..length]);
    let (rank, others) = (host.rank(), others(host));
    let mut records = vec![record; host.size()];
    let sends: Vec<Outgoing<'_>> = others.iter().map(|&to| Outgoing { to, bytes: &record }).collect();
    let mut receives: Vec<Incoming<'_>> = Vec::with_capacity(others.len());
    for (from, bytes) in records.iter_mut().enumerate().filter(|(from, _)| *from != rank) {
        receives.push(Incoming { from, bytes });
    }
    host.exchange(&sends, &mut receives, timeout)?;
    let text = |record: &[u8; RECORD]| {
        let end = record.iter().position(|byte| *byte == 0).unwrap_or(RECORD);
        String::from_utf8_lossy(&record[..end]).into_owned()
    };
    Ok(records.iter().map(text).collect())
}

fn others(host: &dyn Transport) -> Vec<usize> {
    (0..host.size()).filter(|rank| *rank != host.rank()).collect()
}

/// Rank 0's number, on all ranks, or why it has none.
#[track_caller]
fn share_id(
    host: &mut dyn Transport,
    made: &Result<UniqueId, String>,
    timeout: Duration,
) -> Result<Result<UniqueId, String>> {
    // 1 and the number, or 0 and a text.
    let mut record = [0; RECORD];
    match made {
        Ok(id) => {
            record[0] = 1;
            record[1..129].copy_from_slice(&id.0);
        }
        Err(why) => {
            let length = why.len().min(RECORD - 1);
            record[1..=length].copy_from_slice(&why.as_bytes()[..length]);
        }
    }
    let others = others(host);
    if host.rank() == 0 {
        let sends: Vec<Outgoing<'_>> = others.iter().map(|&to| Outgoing { to, bytes: &record }).collect();
        host.exchange(&sends, &mut [], timeout)?;
    } else {
        host.exchange(&[], &mut [Incoming { from: 0, bytes: &mut record }], timeout)?;
    }
    if record[0] == 0 {
        let text = String::from_utf8_lossy(&record[1..]);
        return Ok(Err(text.trim_end_matches('\0').to_string()));
    }
    let mut id = UniqueId([0; 128]);
    id.0.copy_from_slice(&record[1..129]);
    Ok(Ok(id))
}

/// A host transport, with NCCL if the ranks have agreed on it.
struct Nccl {
    host: Box<dyn Transport>,
    comm: Option<Communicator>,
    note: Option<String>,
    version: String,
}

/// The ranks that take part in an exchange.
fn involved(sends: &[OnDevice], receives: &[OnDevice]) -> Vec<usize> {
    let mut ranks: Vec<usize> = sends.iter().chain(receives).map(|message| message.rank).collect();
    ranks.sort();
    ranks.dedup();
    ranks
}

/// What a rank tells another about its messages to it and from it.
fn announcement(sends: &[OnDevice], receives: &[OnDevice], rank: usize) -> Announcement {
    let mut words = [0u64; 4];
    for (at, messages) in [(0, sends), (2, receives)] {
        for message in messages.iter().filter(|message| message.rank == rank) {
            let bytes = message.bytes as u64;
            words[at] += bytes;
            words[at + 1] = words[at + 1].wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(bytes + 1);
        }
    }
    bytemuck::cast(words.map(u64::to_le))
}

/// What is wrong with what another rank told, beside what this one tells it.
fn mismatch(mine: &Announcement, theirs: &Announcement) -> Option<String> {
    if *theirs == GIVEN_UP {
        return Some("gave up an exchange between GPUs".into());
    }
    let [mine, theirs]: [[u64; 4]; 2] = [mine, theirs].map(|words| bytemuck::pod_read_unaligned(words));
    let [mine, theirs] = [mine, theirs].map(|words| words.map(u64::from_le));
    if theirs[..2] != mine[2..] {
        return Some(match (theirs[0], mine[2]) {
            (got, want) if got != want => format!("sent {got} bytes where {want} were expected"),
            _ => "sent messages of other lengths than were expected".into(),
        });
    }
    if theirs[2..] != mine[..2] {
        return Some(match (theirs[2], mine[0]) {
            (got, want) if got != want => format!("expects {got} bytes where {want} are sent"),
            _ => "expects messages of other lengths than are sent".into(),
        });
    }
    None
}

impl Nccl {
    /// Tells other ranks something, and hears something of each.
    #[track_caller]
    fn tell(
        &mut self,
        ranks: &[usize],
        out: &[Announcement],
        timeout: Duration,
    ) -> Result<Vec<Announcement>> {
        let mut told = vec![[0; 32]; ranks.len()];
        let sends: Vec<Outgoing<'_>> =
            ranks.iter().zip(out).map(|(&to, bytes)| Outgoing { to, bytes }).collect();
        let mut receives: Vec<Incoming<'_>> =
            ranks.iter().zip(&mut told).map(|(&from, bytes)| Incoming { from, bytes }).collect();
        self.host.exchange(&sends, &mut receives, timeout)?;
        Ok(told)
    }

    /// Finds a rank that does not take part, or takes part in something else.
    #[track_caller]
    fn announce(&mut self, sends: &[OnDevice], receives: &[OnDevice], timeout: Duration) -> Result<()> {
        let ranks = involved(sends, receives);
        let mine: Vec<Announcement> = ranks.iter().map(|rank| announcement(sends, receives, *rank)).collect();
        // Twice: what comes first may be from a rank that has waited too long and is gone.
        for _ in 0..2 {
            let told = self.tell(&ranks, &mine, timeout)?;
            for (&rank, (mine, theirs)) in ranks.iter().zip(mine.iter().zip(&told)) {
                if let Some(why) = mismatch(mine, theirs) {
                    return Err(Error::new("exchange", ErrorKind::Peer { rank, why }));
                }
            }
        }
        Ok(())
    }

    /// The error of an exchange that NCCL did not end, with the rank that is missing, if the host transport finds one.
    #[track_caller]
    fn missing(
        &mut self,
        sends: &[OnDevice],
        receives: &[OnDevice],
        why: String,
        timeout: Duration,
    ) -> Error {
        let ranks = involved(sends, receives);
        if let Err(error) = self.tell(&ranks, &vec![GIVEN_UP; ranks.len()], timeout.min(GRACE)) {
            return error;
        }
        let rank = ranks.first().copied().unwrap_or_default();
        let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let why = format!("is there, but an exchange between GPUs with ranks {ranks} failed: {why}");
        Error::new("exchange", ErrorKind::Peer { rank, why })
    }
}

impl Transport for Nccl {
    fn name(&self) -> String {
        match &self.comm {
            Some(_) => format!("nccl {} and {}", self.version, self.host.name()),
            None => self.host.name(),
        }
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn size(&self) -> usize {
        self.host.size()
    }

    #[track_caller]
    fn exchange(
        &mut self,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        timeout: Duration,
    ) -> Result<()> {
        self.host.exchange(sends, receives, timeout)
    }

    fn device(&self) -> Option<&Arc<Cuda>> {
        self.comm.as_ref().map(Communicator::cuda)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    #[track_caller]
    fn exchange_on_device(
        &mut self,
        after: &Mark,
        sends: &[OnDevice],
        receives: &[OnDevice],
        timeout: Duration,
    ) -> Result<()> {
        // What others wait for is there before they are told that it comes.
        after.synchronize()?;
        self.announce(sends, receives, timeout)?;
        let Some(comm) = &mut self.comm else {
            let what = "an exchange between GPUs without a communicator";
            return Err(Error::new("exchange", ErrorKind::Internal { what }));
        };
        comm.exchange(after, sends, receives, timeout).map_err(|trouble| match trouble {
            Trouble::Device(error) => error,
            Trouble::Nccl(why) => self.missing(sends, receives, why, timeout),
        })
    }

    fn abort(&mut self, why: &str) {
        self.host.abort(why);
        if let Some(comm) = &mut self.comm {
            comm.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_on_what_keeps_them_from_nccl() {
        let table: [(&[&str], Option<&str>); 6] = [
            (&["gpu a 22105 x", "gpu b 22105 x"], None),
            (&["gpu a 22105 x", "gpu b 22105 y", "gpu c 22105 "], None),
            (&["gpu a 22105 x", "no computes on cpu"], Some("rank 1 computes on cpu")),
            (&["gpu a 1 x", "gpu b 1 x", "gpu a 1 x y"], Some("ranks 0 and 2 have the same GPU, on x y")),
            (
                &["gpu a 22105 x", "gpu b 22203 x"],
                Some("NCCL of rank 0 has version 22105, that of rank 1 22203"),
            ),
            (&["", "gpu a 1 x"], Some("rank 0 ")),
        ];
        for (said, want) in table {
            let said: Vec<String> = said.iter().map(|s| s.to_string()).collect();
            assert_eq!(obstacle(&said).as_deref(), want);
        }
        assert_eq!(shown(22105), "2.21.5");
    }

    #[test]
    fn announcements_tell_every_difference() {
        let message = |rank, bytes| OnDevice { rank, address: 0, bytes };
        // What rank 0 sends to rank 1, and what that expects.
        let table: [(&[usize], &[usize], Option<&str>); 7] = [
            (&[], &[], None),
            (&[8, 0, 4], &[8, 0, 4], None),
            (&[8], &[4], Some("sent 8 bytes where 4 were expected")),
            (&[8, 4], &[4, 8], Some("sent messages of other lengths than were expected")),
            (&[8], &[8, 0], Some("sent messages of other lengths than were expected")),
            (&[], &[0], Some("sent messages of other lengths than were expected")),
            (&[12], &[8, 4], Some("sent messages of other lengths than were expected")),
        ];
        for (sent, expected, want) in table {
            let to = |rank, all: &[usize]| all.iter().map(|bytes| message(rank, *bytes)).collect::<Vec<_>>();
            // Messages with others are told to them.
            let sends = [to(1, sent), vec![message(2, 99)]].concat();
            let first = announcement(&sends, &[], 1);
            let second = announcement(&[], &to(0, expected), 0);
            assert_eq!(mismatch(&second, &first).as_deref(), want, "{sent:?} {expected:?}");
            assert_eq!(mismatch(&first, &second).is_some(), want.is_some(), "both learn of it");
        }
        let given_up = mismatch(&announcement(&[], &[], 0), &GIVEN_UP);
        assert_eq!(given_up.as_deref(), Some("gave up an exchange between GPUs"));
    }
}
