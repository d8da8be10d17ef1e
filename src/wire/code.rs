//! Code words: the first word of an error, and what it means for the sender of the command.
//!
//! This is the only table of the module's refusals and of the server's own errors. Documents print
//! it, and the client counts votes and repeats releases by it. With every error in this table, the
//! command was not carried out and has changed nothing; except `ERR` after a bug in the module:
//! then the command may have been carried out in part.

use crate::engine::RefusalKind;

/// What an error means for the sender of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The node does not carry out the command at present; trying again later may succeed.
    Later,
    /// The node grants nothing for the time in the second word.
    Quarantine,
    /// The lock is not free, and the node has no room for another waiter, or the lock none for
    /// another reader.
    Full,
    /// The user may not do this.
    Forbidden,
    /// The key holds something that is not a lock.
    WrongType,
    /// The same command would be refused again.
    Never,
}

/// A code word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The word itself.
    pub word: &'static str,
    /// What it means for the sender.
    pub meaning: Meaning,
    /// When a node answers with it, for documents.
    pub when: &'static str,
    /// Whether and when to try again, for documents.
    pub retry: &'static str,
}

impl Code {
    /// The text of an error reply with this code.
    pub fn says(&self, text: &str) -> String {
        format!("{} {text}", self.word)
    }
}

const fn code(
    word: &'static str,
    meaning: Meaning,
    when: &'static str,
    retry: &'static str,
) -> Code {
    Code { word, meaning, when, retry }
}

pub(crate) const BADTTL: Code = code("BADTTL", Meaning::Never, "`ttl` is not 1 .. max-ttl", "no");
pub(crate) const BADTOKEN: Code =
    code("BADTOKEN", Meaning::Never, "`token` is empty or longer than max-token-bytes", "no");
/// An argument is not allowed, for example an option that the node does not know.
pub const BADARG: Code =
    code("BADARG", Meaning::Never, "an option or a number is not allowed", "no");
pub(crate) const WRONGTYPE: Code =
    code("WRONGTYPE", Meaning::WrongType, "the key holds another kind of value", "no");
pub(crate) const QUARANTINE: Code = code(
    "QUARANTINE",
    Meaning::Quarantine,
    "the node may have forgotten a lease; the second word is the milliseconds left",
    "after that time, or on the other nodes",
);
pub(crate) const QUEUEFULL: Code = code(
    "QUEUEFULL",
    Meaning::Full,
    "the request would wait, but max-waiters already do",
    "later, or without `WAIT` and `QUEUE`",
);
/// The user may not do this. The server also uses it for commands and keys.
pub const NOPERM: Code =
    code("NOPERM", Meaning::Forbidden, "the user may not publish to the `NOTIFY` channel", "no");
pub(crate) const EXHAUSTED: Code = code(
    "EXHAUSTED",
    Meaning::Never,
    "the lock's fence, or the node's floor, is 9007199254740991",
    "no; try the other nodes",
);
pub(crate) const STATEFILE: Code = code(
    "STATEFILE",
    Meaning::Later,
    "the state file cannot be written",
    "when the file can be written again",
);
pub(crate) const BADFENCE: Code = code(
    "BADFENCE",
    Meaning::Never,
    "the fence is above all that the node knows, and more than 8 weeks beyond the current time in \
     µs since 1970; the text has the bound",
    "no; try the other nodes",
);
pub(crate) const NOUPGRADE: Code = code(
    "NOUPGRADE",
    Meaning::Never,
    "the token holds the lock as a reader, and asks for it as a writer",
    "no; release it first",
);
pub(crate) const READERSFULL: Code = code(
    "READERSFULL",
    Meaning::Full,
    "max-readers already hold the lock, nobody is in line for it, and the request does not wait",
    "later, or with `WAIT` or `QUEUE`",
);
pub(crate) const NOAUTHORITY: Code = code(
    "NOAUTHORITY",
    Meaning::Later,
    "too few replicas of the node support it as their master",
    "later, or on the master that has replaced it",
);
/// The server's word for errors without a word of their own.
pub const ERR: Code = code(
    "ERR",
    Meaning::Never,
    "wrong number of arguments; or unknown command, if the module is not loaded",
    "no",
);

/// The module uses the server's word, which clients of a Cluster know.
pub(crate) const TRYAGAIN: Code = code(
    "TRYAGAIN",
    Meaning::Later,
    "the lock's slot is moving, or too few masters of the Cluster confirm the node's slots",
    "soon",
);

/// The module's own codes, by the number of the kind of refusal.
pub const MODULE: [Code; RefusalKind::COUNT] = {
    let mut codes = [BADTTL; RefusalKind::COUNT];
    let mut index = 0;
    while index < codes.len() {
        codes[index] = of_kind(RefusalKind::ALL[index]);
        index += 1;
    }
    codes
};

const fn of_kind(kind: RefusalKind) -> Code {
    match kind {
        RefusalKind::BadTtl => BADTTL,
        RefusalKind::BadToken => BADTOKEN,
        RefusalKind::BadArg => BADARG,
        RefusalKind::WrongType => WRONGTYPE,
        RefusalKind::Quarantine => QUARANTINE,
        RefusalKind::QueueFull => QUEUEFULL,
        RefusalKind::NoPermission => NOPERM,
        RefusalKind::Exhausted => EXHAUSTED,
        RefusalKind::StateFile => STATEFILE,
        RefusalKind::BadFence => BADFENCE,
        RefusalKind::NoUpgrade => NOUPGRADE,
        RefusalKind::ReadersFull => READERSFULL,
        RefusalKind::NoAuthority => NOAUTHORITY,
        RefusalKind::SlotMoving => TRYAGAIN,
    }
}

pub(crate) const LOADING: Code =
    code("LOADING", Meaning::Later, "the data set is being loaded", "when it is loaded");
/// Of the server, about its replicas.
pub const NOREPLICAS: Code = code(
    "NOREPLICAS",
    Meaning::Later,
    "fewer replicas than `min-replicas-to-write` are in step",
    "when enough are",
);
/// The text with which a replica refuses with [`READONLY`].
pub const IS_REPLICA: &str = "the server is a replica";

/// The node is a replica. The module uses it too.
pub const READONLY: Code = code(
    "READONLY",
    Meaning::Later,
    "the node is a replica, or its cluster is changing masters",
    "on its master, or here when it is a master again",
);
/// The server's word for a lock on another node of its cluster.
pub const MOVED: Code = code(
    "MOVED",
    Meaning::Never,
    "the node's cluster has the lock's slot on another master",
    "no; use that master, which the text names",
);
pub(crate) const CLUSTERDOWN: Code =
    code("CLUSTERDOWN", Meaning::Later, "the node's cluster is not complete", "when it is");
pub(crate) const UNBLOCKED: Code =
    code("UNBLOCKED", Meaning::Later, "the node became a replica meanwhile", "on its master");

pub(crate) const OOM: Code =
    code("OOM", Meaning::Later, "`maxmemory` is reached", "when memory is free");

/// The server's greeting, before any command, to a client that it does not let in.
pub(crate) const DENIED: Code = code(
    "DENIED",
    Meaning::Forbidden,
    "the server is in protected mode: it has no password, and the client is on another machine",
    "no; set `requirepass` there, or `protected-mode no`",
);

/// The errors with which the server itself answers a command of the module.
pub const SERVER: [Code; 15] = [
    ERR,
    code("NOAUTH", Meaning::Forbidden, "the connection has not logged in", "no; log in"),
    code("WRONGPASS", Meaning::Forbidden, "wrong user name or password", "no"),
    DENIED,
    LOADING,
    code("BUSY", Meaning::Later, "a script has been running for too long", "when it has ended"),
    READONLY,
    code("MASTERDOWN", Meaning::Later, "a replica has lost its master", "when it has one again"),
    CLUSTERDOWN,
    MOVED,
    UNBLOCKED,
    NOREPLICAS,
    code("MISCONF", Meaning::Later, "the last snapshot failed", "when one has succeeded"),
    OOM,
    code("NOPROTO", Meaning::Never, "the server does not speak this version of RESP", "no"),
];

/// The first word of an error.
pub fn word_of(error: &str) -> &str {
    error.split_once(' ').map_or(error, |(word, _)| word)
}

/// What an error means; one that is not in the table means [`Meaning::Never`].
pub fn meaning_of(error: &str) -> Meaning {
    let word = word_of(error);
    let code = MODULE.iter().chain(&SERVER).find(|code| code.word == word);
    code.map_or(Meaning::Never, |code| code.meaning)
}

/// Whether the error reports that the server does not know the command.
pub fn is_unknown_command(error: &str) -> bool {
    let rest = error.strip_prefix(ERR.word);
    rest.is_some_and(|rest| rest.starts_with(" unknown command"))
}

/// Whether the server has refused a command at present, before the module saw it.
pub fn is_refused_unseen(text: &str) -> bool {
    let word = word_of(text);
    // A request that waits has been seen.
    let is_it = |code: &Code| code.word == word && code.meaning == Meaning::Later;
    word != UNBLOCKED.word && SERVER.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_in_the_table_twice() {
        let mut words: Vec<_> = MODULE.iter().chain(&SERVER).map(|code| code.word).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn what_the_documents_say_of_trying_again_is_what_the_client_does() {
        for code in MODULE.iter().chain(&SERVER) {
            let is_permanent = match code.meaning {
                Meaning::Never | Meaning::Forbidden | Meaning::WrongType => true,
                Meaning::Later | Meaning::Quarantine | Meaning::Full => false,
            };
            assert_eq!(code.retry.split([' ', ';']).next() == Some("no"), is_permanent, "{code:?}");
        }
    }

    #[test]
    fn an_error_means_what_its_first_word_says() {
        assert_eq!(meaning_of("LOADING x"), Meaning::Later);
        assert_eq!(meaning_of("STATEFILE no room"), Meaning::Later);
        for error in ["", "LOADINGx", " LOADING", "MOVED 1 h:1"] {
            assert_eq!(meaning_of(error), Meaning::Never, "{error}");
        }
        assert!(is_unknown_command("ERR unknown command 'LOCK.ACQUIRE'"));
        assert!(!is_unknown_command("ERR wrong number of arguments"));
    }
}
