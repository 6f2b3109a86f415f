//! Processes that talk over TCP, on one machine or on many.
//!
//! Every two ranks have two connections: one for messages, one for what must not wait behind them. Rank 0 listens at an address that
//! all know. The others listen where their system lets them, tell rank 0 where that is, get the table of all addresses from it, and
//! connect to the ranks below them. Whoever connects greets first; who does not greet as a rank of this run does is turned away.
//!
//! A connection then carries frames: a kind, a length, and that many bytes. Sockets never block: an exchange goes round all of
//! them until everything has moved.

mod frames;
mod meeting;

use self::frames::{
    FAREWELL, HEADER, Header, Kind, Moved, after, garbled, header, moved, parsed, poll, read_text, tell,
};
use crate::launch::Launch;
use crate::transport::{
    Incoming, Outgoing, Transport, check_ranks, farewell, gave_up, has_ended, rest, was_silent, wrong_length,
};
use dittograd_numerics::error::{Error, Located, Result};
use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest time that counts as waiting between two looks at the sockets. After a longer one this process itself was stopped, and
/// the others may have been too.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Connects the processes of a run by TCP. Nobody waits longer than `timeout` for the others to come.
#[track_caller]
pub fn sockets(launch: &Launch, timeout: Duration) -> Result<Box<dyn Transport>> {
    let mut sockets = Sockets { rank: launch.rank, size: launch.size, local_rank: 0, peers: vec![] };
    if let Err(error) = sockets.connect(launch, timeout).located() {
        let (why, end) = (farewell(&error), after(FAREWELL));
        for peer in &sockets.peers {
            // Some wait for the table, some for messages.
            tell(&peer.data, &why, end);
            tell(&peer.control, &why, end);
        }
        return Err(error);
    }
    let below = sockets.peers.iter().take(launch.rank);
    let beside = below.filter(|p| p.is_on_this_machine()).count();
    sockets.local_rank = launch.local_rank.unwrap_or(beside);
    Ok(Box::new(sockets))
}

struct Sockets {
    rank: usize,
    size: usize,
    local_rank: usize,
    /// The other ranks, in their order.
    peers: Vec<Peer>,
}

/// The connections to another rank.
struct Peer {
    rank: usize,
    /// For messages.
    data: TcpStream,
    /// Of the next message.
    header: Header,
    /// For everything else.
    control: TcpStream,
    /// Of the next word by `control`.
    notice: Header,
    /// Nothing comes by `control` any more.
    quiet: bool,
    /// Nothing more goes by `control`, unless this rank aborts.
    deaf: bool,
}

/// What of an exchange is left to do with a rank.
#[derive(Default)]
struct Moves<'a, 'b> {
    sends: VecDeque<&'a [u8]>,
    /// Bytes that have left of the first, with its header.
    sent: usize,
    receives: VecDeque<&'b mut [u8]>,
    /// Bytes that have come of the first, without its header.
    received: usize,
    /// When something moved last, by the clock of the exchange.
    moved: Duration,
    /// When it said last that it waits itself.
    waits: Option<Duration>,
}

impl Moves<'_, '_> {
    fn done(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// How long the rank may be silent. One that waits itself gets more time, so that whom it waits for is found first.
    fn limit(&self, clock: Duration, timeout: Duration) -> Duration {
        let waits = self.waits.is_some_and(|said| clock - said < timeout / 2);
        if waits { timeout.saturating_mul(2) } else { timeout }
    }
}

/// Reads or writes of a connection before others get their turn.
const TURN: usize = 8;

impl Peer {
    fn new(rank: usize, data: TcpStream, control: TcpStream) -> Peer {
        let (header, notice) = (Header::default(), Header::default());
        Peer { rank, data, header, control, notice, quiet: false, deaf: false }
    }

    /// Whether the rank is on this machine: only then both ends of a connection have one address.
    fn is_on_this_machine(&self) -> bool {
        match (self.data.local_addr(), self.data.peer_addr()) {
            (Ok(here), Ok(there)) => {
                let (here, there) = (here.ip().to_canonical(), there.ip().to_canonical());
                here == there || there.is_loopback()
            }
            _ => false,
        }
    }

    /// Why the rank is not there any more: what it says by the other connection, if it says something.
    #[cold]
    fn gone(&mut self) -> Error {
        let heard = poll(after(FAREWELL / 4), || match self.listen() {
            Err(error) => Some(error),
            Ok(_) if self.quiet => Some(has_ended(self.rank)),
            Ok(_) => None,
        });
        heard.unwrap_or_else(|| has_ended(self.rank))
    }

    /// Reads what the rank says beside messages: that it waits itself, or, as an error, that it aborts.
    fn listen(&mut self) -> Result<bool> {
        let mut waits = false;
        while !self.quiet && self.notice.read(&self.control, &mut self.quiet) {
            match parsed(self.notice.bytes) {
                Some((Kind::Waiting, 0)) => waits = true,
                Some((Kind::Abort, length)) => {
                    return Err(gave_up(self.rank, &read_text(&self.control, length)));
                }
                _ => return Err(garbled(self.rank)),
            }
            self.notice.have = 0;
        }
        Ok(waits)
    }

    /// Says that this rank waits. Who does not read it has other troubles.
    fn say_waiting(&mut self) {
        if !self.deaf {
            let said = moved(self.control.write(&header(Kind::Waiting, 0)));
            self.deaf = !matches!(said, Moved::Bytes(HEADER));
        }
    }

    /// Sends what can be sent now. Returns how many bytes.
    fn send(&mut self, moves: &mut Moves<'_, '_>) -> Result<usize> {
        let mut total = 0;
        for _ in 0..TURN {
            let Some(bytes) = moves.sends.front().copied() else { break };
            let header = header(Kind::Data, bytes.len());
            let result = match moves.sent.checked_sub(HEADER) {
                Some(sent) => self.data.write(&bytes[sent..]),
                None => {
                    let parts = [IoSlice::new(&header[moves.sent..]), IoSlice::new(bytes)];
                    self.data.write_vectored(&parts)
                }
            };
            match moved(result) {
                Moved::Bytes(n) => {
                    total += n;
                    moves.sent += n;
                }
                Moved::Nothing => break,
                Moved::Ended => return Err(self.gone()),
            }
            if moves.sent == HEADER + bytes.len() {
                moves.sends.pop_front();
                moves.sent = 0;
            }
        }
        Ok(total)
    }

    /// Receives what has come. Returns how many bytes.
    fn receive(&mut self, moves: &mut Moves<'_, '_>) -> Result<usize> {
        let mut total = 0;
        for _ in 0..TURN {
            let Some(bytes) = moves.receives.front_mut() else { break };
            let (had, mut ended) = (self.header.have, false);
            let whole = self.header.read(&self.data, &mut ended);
            total += self.header.have - had;
            match whole {
                true => {}
                false if ended => return Err(self.gone()),
                false => break,
            }
            match parsed(self.header.bytes) {
                Some((Kind::Data, length)) if length == bytes.len() as u64 => {}
                Some((Kind::Data, length)) => return Err(wrong_length(self.rank, length, bytes.len())),
                // It did not find the others.
                Some((Kind::Abort, length)) => {
                    return Err(gave_up(self.rank, &read_text(&self.data, length)));
                }
                _ => return Err(garbled(self.rank)),
            }
            if moves.received < bytes.len() {
                match moved(self.data.read(&mut bytes[moves.received..])) {
                    Moved::Bytes(n) => {
                        total += n;
                        moves.received += n;
                    }
                    Moved::Nothing => break,
                    Moved::Ended => return Err(self.gone()),
                }
            }
            if moves.received == bytes.len() {
                (moves.received, self.header.have) = (0, 0);
                moves.receives.pop_front();
            }
        }
        Ok(total)
    }
}

impl Sockets {
    /// Goes round the connections until everything has moved.
    fn move_all(&mut self, all: &mut [Moves<'_, '_>], timeout: Duration) -> Result<()> {
        let (mut clock, mut idle, mut looked) = (Duration::ZERO, Duration::ZERO, Instant::now());
        let mut said = Duration::ZERO;
        loop {
            let (mut total, mut done) = (0, true);
            for (peer, moves) in self.peers.iter_mut().zip(&mut *all) {
                let bytes = peer.send(moves)? + peer.receive(moves)?;
                if bytes > 0 {
                    moves.moved = clock;
                }
                total += bytes;
                done &= moves.done();
            }
            if done {
                return Ok(());
            }
            let step = looked.elapsed().min(LONGEST_LOOK);
            looked = Instant::now();
            clock += step;
            if total > 0 {
                idle = Duration::ZERO;
                continue;
            }
            idle += step;
            let speak = clock - said >= timeout / 4;
            if speak {
                said = clock;
            }
            for (peer, moves) in self.peers.iter_mut().zip(&mut *all) {
                if peer.listen()? {
                    moves.waits = Some(clock);
                }
                if !moves.done() && clock - moves.moved >= moves.limit(clock, timeout) {
                    return Err(was_silent(peer.rank, timeout));
                }
                if speak {
                    peer.say_waiting();
                }
            }
            rest(idle);
        }
    }
}

impl Transport for Sockets {
    fn name(&self) -> String {
        "tcp".into()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    #[track_caller]
    fn exchange(
        &mut self,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        timeout: Duration,
    ) -> Result<()> {
        check_ranks(self.rank, self.size, sends.iter().map(|s| s.to))?;
        check_ranks(self.rank, self.size, receives.iter().map(|r| r.from))?;
        // This rank is not among the peers.
        let place = |rank: usize| if rank > self.rank { rank - 1 } else { rank };
        let mut all: Vec<Moves<'_, '_>> = self.peers.iter().map(|_| Moves::default()).collect();
        for send in sends {
            all[place(send.to)].sends.push_back(send.bytes);
        }
        for receive in receives {
            all[place(receive.from)].receives.push_back(receive.bytes);
        }
        self.move_all(&mut all, timeout).located()
    }

    fn abort(&mut self, why: &str) {
        let end = after(FAREWELL);
        for peer in &mut self.peers {
            // A connection that ends with words unread may lose those that go the other way.
            let _ = peer.listen();
            tell(&peer.control, why, end);
        }
    }
}
