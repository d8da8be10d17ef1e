//! The table of commands: the only place that defines their names, arguments, replies and refusals.
//!
//! The module registers commands from it (arity, flags, key specs, ACL categories, `COMMAND DOCS`),
//! `LOCK.HELP` prints it, and a test compares `docs/commands.md` with it.

use std::ffi::CStr;

use super::code::{
    BADARG, BADFENCE, BADTOKEN, BADTTL, Code, EXHAUSTED, NOAUTHORITY, NOPERM, NOUPGRADE,
    QUARANTINE, QUEUEFULL, READERSFULL, STATEFILE, TRYAGAIN, WRONGTYPE,
};

/// The release that introduced all of these commands.
pub const SINCE: &str = "0.1.0";

/// The names of the commands.
pub const ACQUIRE: &str = text(c_names::ACQUIRE);
/// See [`ACQUIRE`].
pub const RELEASE: &str = text(c_names::RELEASE);
/// See [`ACQUIRE`].
pub const EXTEND: &str = text(c_names::EXTEND);
/// See [`ACQUIRE`].
pub const FENCE: &str = "LOCK.FENCE";
/// See [`ACQUIRE`].
pub const FLOOR: &str = text(c_names::FLOOR);
/// See [`ACQUIRE`].
pub const INFO: &str = "LOCK.INFO";
/// See [`ACQUIRE`].
pub const HELP: &str = "LOCK.HELP";

/// Names of commands as C strings, for commands that the module makes the server send.
pub mod c_names {
    use std::ffi::CStr;

    /// See [`super::ACQUIRE`].
    pub const ACQUIRE: &CStr = c"LOCK.ACQUIRE";
    /// See [`super::RELEASE`].
    pub const RELEASE: &CStr = c"LOCK.RELEASE";
    /// See [`super::EXTEND`].
    pub const EXTEND: &CStr = c"LOCK.EXTEND";
    /// See [`super::FLOOR`].
    pub const FLOOR: &CStr = c"LOCK.FLOOR";
    /// See [`super::keyword::LABEL`].
    pub const LABEL: &CStr = c"LABEL";
}

const fn text(name: &'static CStr) -> &'static str {
    match name.to_str() {
        Ok(name) => name,
        // PROOF: at compile time.
        Err(_) => panic!("a name is text"),
    }
}

/// The keywords of options.
pub mod keyword {
    /// As a reader.
    pub const SHARED: &str = "SHARED";
    /// The label of the holder.
    pub const LABEL: &str = super::text(super::c_names::LABEL);
    /// Blocks the connection.
    pub const WAIT: &str = "WAIT";
    /// Puts a ticket in line.
    pub const QUEUE: &str = "QUEUE";
    /// The ticket.
    pub const TICKET: &str = "TICKET";
    /// The channel on which it is woken.
    pub const NOTIFY: &str = "NOTIFY";
    /// Lets the node grant the lock to a ticket without another request.
    pub const GRANT: &str = "GRANT";
    /// Marks a release by which a holder hands the lock over.
    pub const HANDOVER: &str = "HANDOVER";
    /// Raises the counter and the lease to a fence.
    pub const FENCE: &str = "FENCE";
    /// Restores a forgotten lease.
    pub const REPAIR: &str = "REPAIR";
}

/// A command, as Redis describes commands.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name, as in `LOCK.ACQUIRE`.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// Its cost.
    pub complexity: &'static str,
    /// The number of arguments, the name included; negative means "at least".
    pub arity: i32,
    /// Flags as `RedisModule_CreateCommand` takes them.
    pub flags: &'static str,
    /// ACL categories, if the server supports them for modules.
    pub acl_categories: &'static str,
    /// What it does to its key; `None` if it takes no key.
    pub key: Option<KeyUse>,
    /// The arguments.
    pub args: &'static [Arg],
    /// The replies: type, and meaning.
    pub replies: &'static [(&'static str, &'static str)],
    /// The refusals.
    pub errors: &'static [Code],
}

/// What a command does to its key, in the words of Redis's key specs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads it.
    Read,
    /// Changes or creates it.
    Update,
}

/// One argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name in the syntax line.
    pub name: &'static str,
    /// Its type.
    pub kind: ArgKind,
    /// The keyword before it, if it is an option.
    pub keyword: Option<&'static str>,
    /// Whether it may be left out.
    pub optional: bool,
    /// What is allowed.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// The name of a lock.
    Key,
    /// Any bytes.
    Bytes,
    /// A whole number in decimal digits.
    Integer,
    /// A keyword without a value.
    Keyword,
    /// Arguments that come together or not at all.
    Block(&'static [Arg]),
    /// Exactly one of these.
    OneOf(&'static [Arg]),
}

impl ArgKind {
    /// The word for it in documents.
    pub const fn word(self) -> &'static str {
        match self {
            ArgKind::Key => "key",
            ArgKind::Bytes => "bytes",
            ArgKind::Integer => "integer",
            ArgKind::Keyword => "keyword",
            ArgKind::Block(_) => "block",
            ArgKind::OneOf(_) => "one of",
        }
    }
}

const fn arg(name: &'static str, kind: ArgKind, range: &'static str, meaning: &'static str) -> Arg {
    Arg { name, kind, keyword: None, optional: false, range, meaning }
}

const fn option(keyword: &'static str, arg: Arg) -> Arg {
    Arg { keyword: Some(keyword), optional: true, ..arg }
}

/// A required argument with a keyword before it.
const fn word(keyword: &'static str, arg: Arg) -> Arg {
    Arg { keyword: Some(keyword), ..arg }
}

/// Arguments that come together.
const fn block(name: &'static str, args: &'static [Arg]) -> Arg {
    arg(name, ArgKind::Block(args), "", "")
}

const KEY: Arg = arg("key", ArgKind::Key, "", "The lock.");
const TOKEN: Arg = arg(
    "token",
    ArgKind::Bytes,
    "1 .. max-token-bytes bytes",
    "Proves the claim. Use 20 random bytes per acquisition: anyone who knows them can release.",
);
const TTL: Arg = arg(
    "ttl",
    ArgKind::Integer,
    "1 .. max-ttl",
    "Length of the lease in milliseconds, on a server clock that cannot be set.",
);
const FENCE_ARG: Arg = arg(
    "fence",
    ArgKind::Integer,
    "1 .. 9007199254740991",
    "Raises the counter, and the fence of the lease, to at least this.",
);
const fn shared(meaning: &'static str) -> Arg {
    option(keyword::SHARED, arg("shared", ArgKind::Keyword, "", meaning))
}
const QUEUE: Arg = word(
    keyword::QUEUE,
    arg("ms", ArgKind::Integer, "0 .. 86400000", "How long the ticket stays in line."),
);
const TICKET: Arg = word(
    keyword::TICKET,
    arg(
        "ticket",
        ArgKind::Bytes,
        "start-id",
        "The place in line. `start` is when the wait began, in milliseconds since 1970 on the \
         waiter's clock; then `-`; `id` is 1 to 64 random bytes.",
    ),
);
const NOTIFY: Arg = word(
    keyword::NOTIFY,
    arg(
        "channel",
        ArgKind::Bytes,
        "1 .. 256 bytes",
        "Where the ticket is published when the lock is reserved for it.",
    ),
);
const GRANT: Arg = option(
    keyword::GRANT,
    arg(
        "number",
        ArgKind::Integer,
        "1 .. 9007199254740991",
        "The node may grant the lock to the ticket on its own, and then publishes this number.",
    ),
);
const HANDOVER: Arg = word(
    keyword::HANDOVER,
    arg(
        "handover",
        ArgKind::Keyword,
        "",
        "The token had won the lock, so the node may grant it to the first in line.",
    ),
);
const RELEASE_QUEUE: &[Arg] = &[shared("The ticket waits as a reader."), QUEUE, TICKET, NOTIFY];
const REPAIR_ARGS: &[Arg] = &[
    word(
        keyword::REPAIR,
        arg(
            "repair",
            ArgKind::Keyword,
            "",
            "Restores the lease of a holder that the node has forgotten.",
        ),
    ),
    option(keyword::LABEL, LABEL),
];
const LABEL: Arg = arg(
    "label",
    ArgKind::Bytes,
    "1 .. 128 bytes",
    "Who is asking, for people to read: a job, `host:pid`. Public, unlike the token.",
);

/// All commands, in the order in which they are documented.
pub const COMMANDS: &[Command] = &[
    Command {
        name: ACQUIRE,
        summary: "Takes the lease on a lock, if nobody holds it, or waits for it.",
        complexity: "O(1); O(log(N)) where N clients wait for the lock or hold it as readers",
        arity: -4,
        flags: "write deny-oom blocking fast",
        acl_categories: "write fast blocking",
        key: Some(KeyUse::Update),
        args: &[
            KEY,
            TOKEN,
            TTL,
            shared(
                "As a reader: any number of readers may hold the lock together, and no writer \
                 beside them.",
            ),
            option(keyword::LABEL, LABEL),
            Arg {
                optional: true,
                ..arg(
                    "waiting",
                    ArgKind::OneOf(&[
                        word(
                            keyword::WAIT,
                            arg(
                                "ms",
                                ArgKind::Integer,
                                "0 .. 86400000",
                                "Blocks the connection until the lock is granted, for this long \
                                 at most.",
                            ),
                        ),
                        block("queue", &[QUEUE, TICKET, NOTIFY, GRANT]),
                    ]),
                    "",
                    "",
                )
            },
        ],
        replies: &[
            (
                "Integer >= 1",
                "Granted: the fence. A writer's is larger than every fence of this lock before; a \
                 reader's is no smaller than any writer's before. For the holder's own token, the \
                 same fence again; the lease never becomes shorter.",
            ),
            (
                "Null",
                "Not granted: others hold the lock, or are ahead of you in line. Nothing has \
                 changed, except that a ticket is in line now. With WAIT: the wait is over.",
            ),
        ],
        errors: &[
            BADTTL,
            BADTOKEN,
            BADARG,
            WRONGTYPE,
            QUARANTINE,
            QUEUEFULL,
            READERSFULL,
            NOUPGRADE,
            NOPERM,
            EXHAUSTED,
            STATEFILE,
            NOAUTHORITY,
            TRYAGAIN,
        ],
    },
    Command {
        name: RELEASE,
        summary: "Gives the lease back, or the place in line.",
        complexity: "O(1); O(log(N)) where N clients wait for the lock or hold it as readers",
        arity: -3,
        flags: "write fast",
        acl_categories: "write fast",
        key: Some(KeyUse::Update),
        args: &[
            KEY,
            TOKEN,
            Arg {
                optional: true,
                ..arg("onward", ArgKind::OneOf(&[HANDOVER, block("queue", RELEASE_QUEUE)]), "", "")
            },
        ],
        replies: &[
            ("Integer 1", "Released."),
            ("Integer 0", "The lock is held, but not with this token. Nothing has changed."),
            ("Null", "Nobody holds it: the lease has ended, or never was. Nothing has changed."),
            (
                "Integer -1",
                "Only with QUEUE: the ticket is not in line, for lack of room or memory. If the \
                 token held the lock, the lease is released all the same.",
            ),
        ],
        errors: &[BADTOKEN, BADARG, WRONGTYPE, NOPERM],
    },
    Command {
        name: EXTEND,
        summary: "Extends the holder's lease to ttl from now.",
        complexity: "O(1); O(log(N)) where N clients hold the lock as readers",
        arity: -4,
        flags: "write fast",
        acl_categories: "write fast",
        key: Some(KeyUse::Update),
        args: &[
            KEY,
            TOKEN,
            TTL,
            shared("A writer becomes a reader, and lets other readers in; a reader stays one."),
            Arg {
                name: "fencing",
                kind: ArgKind::Block(&[
                    Arg { keyword: Some(keyword::FENCE), ..FENCE_ARG },
                    Arg { optional: true, ..block("repair", REPAIR_ARGS) },
                ]),
                keyword: None,
                optional: true,
                range: "",
                meaning: "",
            },
        ],
        replies: &[
            (
                "Integer 1",
                "The lease ends `ttl` from now, or at its former end if that is later: it never \
                 becomes shorter, since its holder may still rely on the earlier answer. Its \
                 fence is the same, or what FENCE raised it to.",
            ),
            (
                "Integer 2",
                "The same, but this node does not count towards a quorum until its quarantine is \
                 over.",
            ),
            (
                "Integer 3",
                "The same as 2, but it counts for a holder that asks no other node, if its \
                 validity still stands when the reply comes.",
            ),
            ("Integer 0", "The lock is held, but not with this token. Nothing has changed."),
            (
                "Null",
                "Nobody holds it, and you did not send REPAIR. With SHARED also: only other \
                 readers hold it. Nothing has changed.",
            ),
        ],
        errors: &[
            BADTTL,
            BADTOKEN,
            BADARG,
            BADFENCE,
            WRONGTYPE,
            QUARANTINE,
            EXHAUSTED,
            STATEFILE,
            NOAUTHORITY,
            TRYAGAIN,
        ],
    },
    Command {
        name: FENCE,
        summary: "Returns the highest fence issued for a lock, or raises it for its holder.",
        complexity: "O(1)",
        arity: -2,
        flags: "write fast",
        acl_categories: "write fast",
        key: Some(KeyUse::Update),
        args: &[
            KEY,
            Arg {
                name: "raise",
                kind: ArgKind::Block(&[TOKEN, FENCE_ARG]),
                keyword: None,
                optional: true,
                range: "",
                meaning: "",
            },
        ],
        replies: &[
            (
                "Integer",
                "Without a token: the highest fence issued, held or not; 0 if there is no \
              such lock. With one: the counter after the raise.",
            ),
            (
                "Integer 0",
                "With a token: the lock is held, but not with this one. Nothing has changed.",
            ),
            ("Null", "With a token: nobody holds the lock. Nothing has changed."),
        ],
        errors: &[
            BADTOKEN,
            BADARG,
            BADFENCE,
            WRONGTYPE,
            QUARANTINE,
            STATEFILE,
            NOAUTHORITY,
            TRYAGAIN,
        ],
    },
    Command {
        name: FLOOR,
        summary: "Returns the floor of the node's fences, or raises it.",
        complexity: "O(1)",
        arity: -1,
        flags: "write fast admin",
        acl_categories: "admin dangerous write fast",
        key: None,
        args: &[Arg {
            optional: true,
            ..arg(
                "fence",
                ArgKind::Integer,
                "1 .. 9007199254740991",
                "Every next fence of a writer on this node is larger than this, and a reader's at \
                 least as large. The floor never falls.",
            )
        }],
        replies: &[("Integer", "The floor, raised or not.")],
        errors: &[BADARG, STATEFILE],
    },
    Command {
        name: INFO,
        summary: "Describes a lock: state, fence, time left, label of the holder.",
        complexity: "O(1); O(N) where N clients hold the lock as readers",
        arity: 2,
        flags: "readonly fast",
        acl_categories: "read fast",
        key: Some(KeyUse::Read),
        args: &[KEY],
        replies: &[(
            "Map",
            "`state` (`free`, `held` or `reserved`), `fence`, `ttl_left_ms`, `label` (null without \
             one), `held_for_ms`, `waiters`, `first_waiting_ms` (null without one); where \
             readers hold it, `readers` and `reader_labels`; where readers wait, \
             `waiting_readers`; on a quarantined node, `quarantine_left_ms` and \
             `quarantine_reason`; on a node that grants nothing, `node_state`; and where \
             `LOCK.EXTEND` would return 2 or 3, `extension`.",
        )],
        errors: &[WRONGTYPE],
    },
    Command {
        name: HELP,
        summary: "Lists the commands.",
        complexity: "O(1)",
        arity: 1,
        flags: "readonly fast allow-loading allow-stale",
        acl_categories: "read fast",
        key: None,
        args: &[],
        replies: &[("Array", "Lines of text: each command's syntax, and what it does.")],
        errors: &[],
    },
];

impl Command {
    /// The syntax line, as in `LOCK.ACQUIRE key token ttl [SHARED] [LABEL label]`.
    pub fn syntax(&self) -> String {
        let mut line = self.name.to_owned();
        syntax_of(self.args, &mut line);
        line
    }

    /// The entry of this name.
    pub fn named(name: &str) -> Option<&'static Command> {
        COMMANDS.iter().find(|command| command.name == name)
    }
}

fn syntax_of(args: &[Arg], line: &mut String) {
    for arg in args {
        let mut text = String::new();
        match (arg.kind, arg.keyword) {
            (ArgKind::Block(inner), _) => {
                syntax_of(inner, &mut text);
                text.remove(0);
            }
            (ArgKind::OneOf(inner), _) => {
                let choices = inner.iter().map(|choice| {
                    let mut text = String::new();
                    syntax_of(&[*choice], &mut text);
                    text.remove(0);
                    text
                });
                text = choices.collect::<Vec<_>>().join(" | ");
            }
            (ArgKind::Keyword, Some(keyword)) => text.push_str(keyword),
            (_, Some(keyword)) => text = format!("{keyword} {}", arg.name),
            (_, None) => text.push_str(arg.name),
        }
        line.push(' ');
        if arg.optional {
            text = format!("[{text}]");
        }
        line.push_str(&text);
    }
}

/// The lines of `LOCK.HELP`, as Redis's own container commands print theirs.
pub fn help() -> Vec<String> {
    let heading = "LOCK.<command> [<arg> [value] [opt] ...]. Commands are:".to_owned();
    let commands =
        COMMANDS.iter().flat_map(|command| [command.syntax(), format!("    {}", command.summary)]);
    std::iter::once(heading).chain(commands).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::code::MODULE;

    #[test]
    fn syntax_lines_show_options_in_brackets() {
        let syntax = |name| Command::named(name).unwrap().syntax();
        assert_eq!(
            syntax("LOCK.ACQUIRE"),
            "LOCK.ACQUIRE key token ttl [SHARED] [LABEL label] \
             [WAIT ms | QUEUE ms TICKET ticket NOTIFY channel [GRANT number]]"
        );
        assert_eq!(
            syntax("LOCK.RELEASE"),
            "LOCK.RELEASE key token [HANDOVER | [SHARED] QUEUE ms TICKET ticket NOTIFY channel]"
        );
        assert_eq!(
            syntax("LOCK.EXTEND"),
            "LOCK.EXTEND key token ttl [SHARED] [FENCE fence [REPAIR [LABEL label]]]"
        );
        assert_eq!(syntax("LOCK.FENCE"), "LOCK.FENCE key [token fence]");
        assert_eq!(syntax("LOCK.HELP"), "LOCK.HELP");
    }

    #[test]
    fn each_refusal_is_an_error_of_a_command() {
        for code in MODULE {
            let has_it = |command: &Command| command.errors.contains(&code);
            assert!(COMMANDS.iter().any(has_it), "{}", code.word);
        }
    }

    #[test]
    fn summaries_are_one_short_sentence_that_needs_no_module_name() {
        for command in COMMANDS {
            let summary = command.summary;
            assert!(summary.ends_with('.') && summary.len() <= 80, "{summary}");
            assert!(!summary.to_lowercase().contains("lockmod"), "{summary}");
        }
    }
}
