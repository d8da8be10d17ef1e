//! Why a request is refused. `wire` writes each as an error reply.

use std::fmt;

use super::{Fence, Millis};

/// Why a node is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuarantineReason {
    /// The node stopped without saving everything, and may have forgotten leases.
    UncleanRestart,
    /// The node's state file is missing or damaged.
    StateLost,
    /// The node was a replica, and may lack its master's last grants; or it had replicas to rest
    /// on, so that another may have replaced it as the master, and has them no more.
    Promotion,
    /// The wall clock was stepped while the node was down, so that loaded leases cannot be dated.
    ClockStep,
    /// The data set that was loaded is not the one that the node saved when it stopped.
    OtherData,
    /// Leases of another master of the node's group may stand.
    OtherMaster,
}

impl QuarantineReason {
    /// The reason, for people.
    pub const fn text(self) -> &'static str {
        match self {
            QuarantineReason::UncleanRestart => "the node restarted uncleanly",
            QuarantineReason::StateLost => "the node's state file was missing or damaged",
            QuarantineReason::Promotion => {
                "the node was promoted from a replica, or had lockmod.replicas before"
            }
            QuarantineReason::ClockStep => "the clock was stepped while the node was down",
            QuarantineReason::OtherData => "the data set is not the one that the node saved",
            QuarantineReason::OtherMaster => "another node may have been the master",
        }
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A request that was refused. It has changed nothing.
///
/// `Display` is the text of the error reply, which `wire` writes: the code word first, then what
/// was wrong, with which value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `BADTTL`: not a whole number of milliseconds from 1 to the node's limit.
    BadTtl {
        /// What was given.
        given: Vec<u8>,
        /// The node's `lockmod.max-ttl`.
        max: Millis,
    },
    /// `BADTOKEN`: empty, or too long.
    BadToken {
        /// The length that was given, in bytes.
        length: usize,
        /// The longest allowed, in bytes.
        max: usize,
    },
    /// `BADARG`: another argument does not fit the command.
    BadArg {
        /// What was given.
        given: Vec<u8>,
        /// What it should have been, for example "fence".
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// `WRONGTYPE`: the key holds something that is not a lock.
    WrongType,
    /// `QUARANTINE`: the node grants nothing for now.
    Quarantine {
        /// Why.
        reason: QuarantineReason,
        /// How much time is left.
        left: Millis,
    },
    /// `QUEUEFULL`: one more waiter would be more than the node allows.
    QueueFull {
        /// How many wait, over all locks.
        waiters: usize,
        /// How many may: the node's `lockmod.max-waiters`.
        max: usize,
    },
    /// `NOPERM`: the user may not publish to the channel that its ticket names.
    NoPermission {
        /// The channel.
        channel: Vec<u8>,
    },
    /// `BADFENCE`: no node can have issued the fence to raise to.
    BadFence {
        /// What was given.
        fence: Fence,
        /// The largest that the node accepts at the moment.
        max: Fence,
    },
    /// `NOUPGRADE`: the token holds the lock as a reader, and asks for it as a writer.
    NoUpgrade,
    /// `READERSFULL`: one more reader of this lock would be more than the node allows.
    ReadersFull {
        /// How many leases of readers the lock has.
        readers: usize,
        /// How many it may have: the node's `lockmod.max-readers`.
        max: usize,
    },
    /// `EXHAUSTED`: the lock's fences have reached their maximum.
    Exhausted,
    /// `STATEFILE`: a larger ceiling could not be made durable.
    StateFile {
        /// The operating system's error.
        cause: String,
    },
    /// `NOAUTHORITY`: too few replicas support this master; another may have replaced it.
    NoAuthority {
        /// How many replicas support it.
        supporters: usize,
        /// How many it needs.
        needed: usize,
    },
    /// `TRYAGAIN`: a slot of the Cluster is moving, or the node has started, and other masters have
    /// not answered yet.
    SlotMoving {
        /// The slot.
        slot: u16,
    },
}

macro_rules! kinds {
    ($($kind:ident,)+) => {
        /// The kinds of refusals, in the order in which documents and `INFO` list them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the variants of `Refusal` have the same names")]
        pub enum RefusalKind {
            $($kind,)+
        }

        impl RefusalKind {
            /// How many there are.
            pub const COUNT: usize = [$(RefusalKind::$kind,)+].len();
            /// All of them; each is at the index that is its number (`as usize`).
            pub const ALL: [RefusalKind; RefusalKind::COUNT] = [$(RefusalKind::$kind,)+];
        }

        impl Refusal {
            /// Its kind.
            pub const fn kind(&self) -> RefusalKind {
                match self {
                    $(Refusal::$kind { .. } => RefusalKind::$kind,)+
                }
            }
        }
    };
}

// The compiler refuses a list in which a variant of `Refusal` is missing. Everything else that is
// needed for each kind is a match on `RefusalKind` or on `Refusal`, which the compiler checks too.
kinds! {
    BadTtl,
    BadToken,
    BadArg,
    WrongType,
    Quarantine,
    QueueFull,
    NoPermission,
    Exhausted,
    StateFile,
    BadFence,
    NoUpgrade,
    ReadersFull,
    NoAuthority,
    SlotMoving,
}
