//! How processes find each other: rank 0 listens at an address that all know, gathers the others, and tells each where all are.

use super::frames::{
    FAREWELL, HEADER, Kind, Moved, after, garbled, header, moved, parsed, poll, read_all, read_text, tell,
    write_all,
};
use super::{Peer, Sockets};
use crate::launch::{Address, Launch, hash};
use crate::transport::{farewell, gave_up, has_ended, was_silent};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// The first bytes of a greeting.
const MAGIC: [u8; 8] = *b"dittonet";

/// Of the greeting, the table and the frames.
const VERSION: u32 = 1;

/// What a connection is for.
const DATA: u32 = 0;

const CONTROL: u32 = 1;

/// What a process says first when it connects to another.
#[derive(Clone, Copy)]
struct Greeting {
    version: u32,
    rank: u32,
    size: u32,
    /// Where it listens.
    port: u32,
    channel: u32,
    /// The run: the hash of its name for rank 0, what rank 0 drew for others.
    run: u64,
}

const GREETING: usize = 36;

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [self.version, self.rank, self.size, self.port, self.channel];
        for (into, word) in bytes[8..28].chunks_exact_mut(4).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes[28..].copy_from_slice(&self.run.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; GREETING]) -> Option<Greeting> {
        let word = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as u32);
        let run = (word(32) as u64) << 32 | word(28) as u64;
        let (version, rank, size, port, channel) = (word(8), word(12), word(16), word(20), word(24));
        let greeting = Greeting { version, rank, size, port, channel, run };
        (bytes[..8] == MAGIC).then_some(greeting)
    }
}

/// An error of a process that does not find the others.
#[cold]
#[track_caller]
fn unmet(rank: usize, why: String) -> Error {
    Error::new("connect", ErrorKind::Peer { rank, why })
}

/// A listener at `port` of this machine. Others than this machine itself reach it unless `host` is the loopback.
fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let listener = if loopback {
        TcpListener::bind((host, port))?
    } else {
        // Where there is no IPv6, there is IPv4.
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|e| match e.kind() {
            io::ErrorKind::AddrInUse => Err(e),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        })?
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A connection that someone opened to us, and what has come of the greeting.
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    bytes: [u8; GREETING],
    have: usize,
}

/// The ranks that come to a listener.
struct Gathering<'a> {
    listener: &'a TcpListener,
    rank: usize,
    size: usize,
    run: u64,
    /// Those that have not greeted yet.
    guests: Vec<Guest>,
    /// Those that have, by rank, from the one after this, with what each connection is for.
    came: Vec<[Option<(TcpStream, SocketAddr)>; 2]>,
    /// The last one that was no rank of this run, and how many there were.
    stranger: Option<(SocketAddr, usize)>,
}

impl Gathering<'_> {
    /// Waits for all ranks above this one.
    fn all(&mut self, timeout: Duration, at: &str) -> Result<()> {
        let done = poll(after(timeout), || match self.look() {
            Ok(()) if self.came.iter().flatten().all(Option::is_some) => Some(Ok(())),
            Ok(()) => None,
            Err(error) => Some(Err(error)),
        });
        match done {
            Some(result) => result.inspect_err(|error| self.refuse_the_rest(error)),
            None => Err(self.missing(timeout, at)),
        }
    }

    /// Tells those that come a little later why they cannot meet, so that they do not look for rank 0 until they give up.
    fn refuse_the_rest(&mut self, error: &Error) {
        let mut told: Vec<TcpStream> = vec![];
        poll(after(2 * FAREWELL), || {
            while let Ok((stream, _)) = self.listener.accept() {
                if stream.set_nonblocking(true).is_ok() {
                    // A connection that ends with a greeting unread may lose what goes the other way.
                    read_all(&stream, &mut [0; GREETING], after(FAREWELL / 10));
                    tell(&stream, &farewell(error), after(FAREWELL / 10));
                    told.push(stream);
                }
            }
            None::<()>
        });
    }

    fn missing(&self, timeout: Duration, at: &str) -> Error {
        let ranks = self.came.iter().zip(self.rank + 1..);
        let missing: Vec<usize> =
            ranks.filter(|(c, _)| c.iter().any(Option::is_none)).map(|(_, rank)| rank).collect();
        let first = missing.first().copied().unwrap_or_default();
        let also = match missing.len() {
            0 | 1 => String::new(),
            n @ 2..10 => format!(", nor did {:?}", &missing[1..n]),
            n => format!(", nor did {} others", n - 1),
        };
        let stranger = match self.stranger {
            Some((from, n)) => format!("; {n} connections were not of this run, the last from {from}"),
            None => String::new(),
        };
        let size = self.size;
        let why = format!(
            "did not come to {at} within {timeout:.0?}{also}; see that all {size} processes were started and reach that address{stranger}"
        );
        unmet(first, why)
    }

    /// Takes whoever has come.
    fn look(&mut self) -> Result<()> {
        // What fails here is a connection that was given up, or a process with too many files, which may pass.
        while let Ok((stream, from)) = self.listener.accept() {
            if let Ok(stream) = prepared(stream) {
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                self.guests.push(Guest { stream, from, bytes: [0; GREETING], have: 0 });
            }
        }
        for mut guest in std::mem::take(&mut self.guests) {
            match moved(guest.stream.read(&mut guest.bytes[guest.have..])) {
                Moved::Bytes(n) if guest.have + n < GREETING => {
                    guest.have += n;
                    self.guests.push(guest);
                }
                Moved::Bytes(_) => match Greeting::parse(&guest.bytes) {
                    Some(greeting) => self.greet(greeting, guest)?,
                    None => self.turn_away(&guest),
                },
                Moved::Nothing => self.guests.push(guest),
                Moved::Ended => self.turn_away(&guest),
            }
        }
        Ok(())
    }

    fn turn_away(&mut self, guest: &Guest) {
        let before = self.stranger.map_or(0, |(_, n)| n);
        self.stranger = Some((guest.from, before + 1));
    }

    fn greet(&mut self, greeting: Greeting, guest: Guest) -> Result<()> {
        let (rank, ip) = (greeting.rank as usize, guest.from.ip());
        let mistake = if greeting.version != VERSION {
            let theirs = greeting.version;
            Some(format!(
                "(from {ip}) speaks version {theirs} of the protocol, and this rank {VERSION}; start one build everywhere"
            ))
        } else if greeting.run != self.run {
            tell(
                &guest.stream,
                "it belongs to another run; MASTER_PORT chooses another port",
                after(FAREWELL),
            );
            self.turn_away(&guest);
            return Ok(());
        } else if greeting.size as usize != self.size {
            let (theirs, ours, me) = (greeting.size, self.size, self.rank);
            Some(format!(
                "(from {ip}) was started as one of {theirs}, and rank {me} as one of {ours}; start all with one number of processes"
            ))
        } else if rank <= self.rank || rank >= self.size || greeting.channel > CONTROL {
            self.turn_away(&guest);
            return Ok(());
        } else {
            self.came[rank - self.rank - 1][greeting.channel as usize].as_ref().map(|(_, first)| {
                format!("came twice, from {} and {ip}; give each process a number of its own", first.ip())
            })
        };
        if let Some(why) = mistake {
            let error = unmet(rank, why);
            tell(&guest.stream, &farewell(&error), after(FAREWELL));
            return Err(error);
        }
        if self.rank == 0 && greeting.channel == DATA {
            write_all(&guest.stream, &header(Kind::Welcome, 0), after(FAREWELL));
        }
        let listens = SocketAddr::new(ip, greeting.port as u16);
        self.came[rank - self.rank - 1][greeting.channel as usize] = Some((guest.stream, listens));
        Ok(())
    }
}

/// Bytes of an address in the table.
const ENTRY: usize = 18;

impl Sockets {
    /// Finds the others.
    pub(super) fn connect(&mut self, launch: &Launch, timeout: Duration) -> Result<()> {
        match &launch.address {
            _ if self.size == 1 => Ok(()),
            Some(address) if self.rank == 0 => self.host(address, hash(&launch.run), timeout),
            Some(address) => self.join(address, hash(&launch.run), timeout),
            None => {
                let why = format!(
                    "{} does not say where rank 0 is; set MASTER_ADDR to its machine and MASTER_PORT to a free port there, or use a build with MPI",
                    launch.by
                );
                Err(Error::argument("connect", "MASTER_ADDR", why))
            }
        }
    }

    /// Waits for the ranks above this one. Those that came are peers, also if others did not. Returns where they listen.
    fn gather(
        &mut self,
        listener: &TcpListener,
        run: u64,
        timeout: Duration,
        at: &str,
    ) -> Result<Vec<SocketAddr>> {
        let (rank, size) = (self.rank, self.size);
        let came = (rank + 1..size).map(|_| [None, None]).collect();
        let mut gathering = Gathering { listener, rank, size, run, guests: vec![], came, stranger: None };
        let result = gathering.all(timeout, at);
        let mut addresses = vec![];
        for (came, rank) in gathering.came.into_iter().zip(rank + 1..) {
            match (came, &result) {
                ([Some((data, address)), Some((control, _))], _) => {
                    self.peers.push(Peer::new(rank, data, control));
                    addresses.push(address);
                }
                ([Some((data, _)), None], Err(error)) => tell(&data, &farewell(error), after(FAREWELL)),
                _ => {}
            }
        }
        result.map(|()| addresses)
    }

    /// Rank 0: tells all others where each of them is.
    fn host(&mut self, address: &Address, run: u64, timeout: Duration) -> Result<()> {
        // A process that ends may still have the port.
        let listener =
            poll(after(timeout.min(Duration::from_secs(5))), || listen(&address.host, address.port).ok());
        let listener = match listener.map_or_else(|| listen(&address.host, address.port), Ok) {
            Ok(listener) => listener,
            Err(e) => {
                let why = format!(
                    "rank 0 cannot listen at {address}: {e}; choose another port, the same for all ranks"
                );
                return Err(Error::argument("connect", "MASTER_PORT", why));
            }
        };
        let mut addresses = self.gather(&listener, run, timeout, &address.to_string())?;
        // Who came by the loopback is on this machine; those of other machines find it where they find this one.
        let ours = self.peers.iter().filter_map(|p| Some(p.data.local_addr().ok()?.ip().to_canonical()));
        if let Some(outside) = ours.into_iter().find(|ip| !ip.is_loopback()) {
            for address in addresses.iter_mut().filter(|a| a.ip().is_loopback()) {
                address.set_ip(outside);
            }
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let drawn = hash(&format!("{since:?} {}", std::process::id()));
        let mut table = header(Kind::Table, 8 + ENTRY * addresses.len()).to_vec();
        table.extend(drawn.to_le_bytes());
        for address in addresses {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            table.extend(ip.octets());
            table.extend(address.port().to_le_bytes());
        }
        let end = after(timeout);
        match self.peers.iter().find(|p| !write_all(&p.data, &table, end)) {
            Some(gone) => Err(has_ended(gone.rank)),
            None => Ok(()),
        }
    }

    /// All other ranks: find rank 0, and by it the others.
    fn join(&mut self, address: &Address, run: u64, timeout: Duration) -> Result<()> {
        let (rank, size) = (self.rank, self.size);
        let here = |e: io::Error| Error::argument("connect", "port", format!("this machine gives none: {e}"));
        let listener = listen(&address.host, 0).map_err(here)?;
        let own = listener.local_addr().map_err(here)?;
        let mut greeting = Greeting {
            version: VERSION,
            rank: rank as u32,
            size: size as u32,
            port: own.port().into(),
            channel: DATA,
            run,
        };
        let data = reach(address, greeting, timeout)?;
        let at = data.peer_addr().map_err(|_| has_ended(0))?;
        let control = open(0, at, Greeting { channel: CONTROL, ..greeting }, timeout);
        // Rank 0 gives up before this, and says for whom it waited.
        let table = table(&data, size, after(timeout.saturating_add(2 * FAREWELL)), timeout)?;
        self.peers.push(Peer::new(0, data, control?));
        let (drawn, entries) = table.split_at(8);
        greeting.run = drawn.iter().rev().fold(0, |n, b| n << 8 | *b as u64);
        for (lower, entry) in (1..rank).zip(entries.chunks_exact(ENTRY)) {
            let mut ip = [0; 16];
            ip.copy_from_slice(&entry[..16]);
            let port = u16::from_le_bytes([entry[16], entry[17]]);
            let at = SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port);
            let data = open(lower, at, greeting, timeout)?;
            let control = open(lower, at, Greeting { channel: CONTROL, ..greeting }, timeout)?;
            self.peers.push(Peer::new(lower, data, control));
        }
        self.gather(&listener, greeting.run, timeout, &own.to_string())?;
        Ok(())
    }
}

/// A connection that does not block, and does not wait for more before it sends.
fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a rank that listens.
fn open(rank: usize, at: SocketAddr, greeting: Greeting, timeout: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, timeout.max(Duration::from_millis(1)));
    let stream = stream.and_then(prepared).map_err(|e| {
        let why = "let the machines reach each other at all ports";
        unmet(rank, format!("could not be reached at {at}: {e}; {why}"))
    })?;
    let said = write_all(&stream, &greeting.to_bytes(), after(timeout));
    if said { Ok(stream) } else { Err(has_ended(rank)) }
}

/// Connects to rank 0, which may come later than this one.
fn reach(address: &Address, greeting: Greeting, timeout: Duration) -> Result<TcpStream> {
    let end = after(timeout);
    loop {
        let why = match attempt(address, greeting, end) {
            Ok(stream) => return Ok(stream),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Early(why)) => why,
        };
        if Instant::now() >= end {
            let why = format!(
                "could not be reached at {address} within {timeout:.0?} ({why}); see that it was started, and that MASTER_ADDR is its machine"
            );
            return Err(unmet(0, why));
        }
        sleep(Duration::from_millis(50));
    }
}

/// Why rank 0 was not found.
enum Failure {
    /// It may be there later.
    Early(io::Error),
    Final(Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Early(e)
    }
}

fn attempt(address: &Address, greeting: Greeting, end: Instant) -> Result<TcpStream, Failure> {
    let closed = || io::Error::new(io::ErrorKind::ConnectionReset, "the connection was closed");
    let mut found = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for at in (address.host.as_str(), address.port).to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        found = TcpStream::connect_timeout(&at, left.clamp(Duration::from_millis(1), Duration::from_secs(5)));
        if found.is_ok() {
            break;
        }
    }
    let stream = prepared(found?)?;
    // Where nobody listens yet, a system may connect a socket to itself.
    if stream.local_addr()? == stream.peer_addr()? || !write_all(&stream, &greeting.to_bytes(), end) {
        return Err(closed().into());
    }
    let mut bytes = [0; HEADER];
    match read_all(&stream, &mut bytes, end) {
        Some(true) => {}
        // Who listened there was about to end.
        Some(false) => return Err(closed().into()),
        None => {
            let why = format!(
                "does not answer at {address}, though something listens there; MASTER_PORT chooses another port"
            );
            return Err(Failure::Final(unmet(0, why)));
        }
    }
    match parsed(bytes) {
        Some((Kind::Welcome, 0)) => Ok(stream),
        Some((Kind::Abort, length)) => Err(Failure::Final(gave_up(0, &read_text(&stream, length)))),
        _ => {
            let why = format!("is not what listens at {address}; MASTER_PORT chooses another port");
            Err(Failure::Final(unmet(0, why)))
        }
    }
}

/// The table that rank 0 sends.
fn table(stream: &TcpStream, size: usize, end: Instant, timeout: Duration) -> Result<Vec<u8>> {
    let mut bytes = [0; HEADER];
    match read_all(stream, &mut bytes, end) {
        Some(true) => {}
        Some(false) => return Err(has_ended(0)),
        None => return Err(was_silent(0, timeout)),
    }
    let mut table = vec![0; 8 + ENTRY * (size - 1)];
    match parsed(bytes) {
        Some((Kind::Abort, length)) => return Err(gave_up(0, &read_text(stream, length))),
        Some((Kind::Table, length)) if length == table.len() as u64 => {}
        _ => return Err(garbled(0)),
    }
    match read_all(stream, &mut table, end) {
        Some(true) => Ok(table),
        Some(false) => Err(has_ended(0)),
        None => Err(was_silent(0, timeout)),
    }
}
