//! What a server of a group keeps, like Redis, of the stream of facts that its master sends or that
//! it sends itself: the stream's identity, the offset, and the last facts.
//!
//! A replica that comes back reports its stream and its offset. If its master has the rest, the
//! replica receives only that: a partial synchronisation. Otherwise it receives the whole data set.
//! A server may therefore receive again, from any server that has it, what it has sent or heard
//! before. In Redis's `replication.c` these are `masterTryPartialResynchronization`,
//! `shiftReplicationId` and `replicationCacheMasterUsingMyself`.

use std::collections::VecDeque;

use lockmod::engine::Fence;
use lockmod::wire::fact::Restated;

/// How many facts a server keeps: few enough that a replica may miss more.
const KEPT: usize = 30;

/// What a master sends to its replicas.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// The whole data set, for a replica that cannot continue where it was, and the stream that
    /// continues after it.
    DataSet(StreamId, Vec<(Vec<u8>, Vec<u8>)>),
    /// A lock, as in the append-only file.
    Stated(Vec<u8>, Vec<Restated>),
    Deleted(Vec<u8>),
    /// A `LOCK.FLOOR` with a heartbeat of this server.
    Heartbeat(usize, String),
    Floor(Fence),
}

impl Fact {
    /// By how much it advances the offset.
    fn length(&self) -> u64 {
        match self {
            Fact::DataSet(..) => 0,
            Fact::Stated(name, facts) => (name.len() + 50 * facts.len()) as u64,
            Fact::Deleted(name) => (name.len() + 20) as u64,
            Fact::Heartbeat(_, text) => (text.len() + 20) as u64,
            Fact::Floor(_) => 30,
        }
    }
}

/// The server that began the stream, and the number of streams that it had begun.
pub(crate) type StreamId = (usize, u64);

/// A place in a stream.
pub(crate) type Place = (StreamId, u64);

/// How a master receives an attaching replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// It continues where it was.
    GoesOn,
    /// It has the right stream, but what it lacks is no longer kept.
    FellBehind,
    /// It has another stream, or none.
    BeginsAnew,
}

/// A server's end of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    server: usize,
    /// The number of streams that it has begun.
    begun: u64,
    id: StreamId,
    pub(crate) offset: u64,
    /// The stream that this one continues, and the offset up to which the two are identical.
    former: Option<Place>,
    /// Whether a master can be asked to continue from here.
    can_go_on: bool,
    /// The last facts, each with the offset after it.
    facts: VecDeque<(u64, Fact)>,
    /// The offset before them.
    kept_from: u64,
}

impl Stream {
    pub(crate) fn new(server: usize) -> Stream {
        let facts = VecDeque::new();
        let (id, former) = ((server, 0), None);
        Stream { server, begun: 0, id, offset: 0, former, can_go_on: false, facts, kept_from: 0 }
    }

    /// Restarts the server with a snapshot saved at this place, or with none.
    pub(crate) fn restart(&mut self, saved: Option<Place>, is_master: bool) {
        *self = Stream { begun: self.begun, ..Stream::new(self.server) };
        if let Some((id, offset)) = saved {
            (self.id, self.offset, self.kept_from) = (id, offset, offset);
            self.can_go_on = true;
        }
        if is_master {
            self.begin();
        }
    }

    /// Makes the server a master: its stream continues the one that it had.
    pub(crate) fn begin(&mut self) {
        self.former = Some(self.place());
        self.begun += 1;
        self.id = (self.server, self.begun);
        self.can_go_on = true;
    }

    /// Its place in the stream.
    pub(crate) fn place(&self) -> Place {
        (self.id, self.offset)
    }

    /// Whether it has a data set that matches its place.
    pub(crate) fn is_whole(&self) -> bool {
        self.can_go_on
    }

    /// Appends a fact that a master sends.
    pub(crate) fn say(&mut self, fact: Fact) {
        let offset = self.offset + fact.length();
        self.keep(offset, fact);
    }

    /// Records a fact that was sent or heard, up to this offset.
    pub(crate) fn keep(&mut self, offset: u64, fact: Fact) {
        self.offset = offset;
        self.facts.push_back((offset, fact));
        if self.facts.len() > KEPT
            && let Some((first, _)) = self.facts.pop_front()
        {
            self.kept_from = first;
        }
    }

    /// The facts that were sent or heard after an offset.
    pub(crate) fn since(&self, offset: u64) -> Vec<(u64, Fact)> {
        assert!(offset >= self.kept_from, "it was to be sent at once");
        self.facts.iter().filter(|(after, _)| *after > offset).cloned().collect()
    }

    /// How a replica with this end is received.
    pub(crate) fn welcome(&self, replica: &Stream) -> Welcome {
        let (id, offset) = replica.place();
        let is_former = |(former, good_to): Place| former == id && offset <= good_to;
        if !replica.can_go_on || id != self.id && !self.former.is_some_and(is_former) {
            return Welcome::BeginsAnew;
        }
        match (self.kept_from..=self.offset).contains(&offset) {
            true => Welcome::GoesOn,
            false => Welcome::FellBehind,
        }
    }

    /// Continues a replica in its master's stream. Returns whether that stream has another identity
    /// than its own had, so that its own replicas must attach again.
    pub(crate) fn goes_on_in(&mut self, id: StreamId) -> bool {
        let is_other = self.id != id;
        if is_other {
            self.former = Some(self.place());
            self.id = id;
        }
        is_other
    }

    /// Makes a replica wait for a data set: it cannot continue where it was.
    pub(crate) fn starts_over(&mut self) {
        self.can_go_on = false;
    }

    /// Records that a replica has received a data set.
    pub(crate) fn replaced_by(&mut self, (id, offset): Place) {
        let (begun, can_go_on, kept_from) = (self.begun, true, offset);
        let new = Stream::new(self.server);
        *self = Stream { begun, id, offset, can_go_on, kept_from, ..new };
    }
}
