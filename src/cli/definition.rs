//! The complete definition of the command: the arguments, and the exit codes of each command.
//!
//! `--help`, the man pages, the completions and the reading of arguments start from here. A command
//! lists only the exit codes that it can end with.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStr, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};

use super::args::Arguments;
use crate::client::Printable;

/// An exit code, and what it means.
type Exit = (&'static str, &'static str);

const DONE: Exit = ("0", "done");
const CONTENDED: Exit =
    ("120", "contended: the lock was still not free for this client\nwhen --wait was over");
const NO_QUORUM: Exit = ("121", "no quorum: too few nodes could be asked");
const LOST: Exit = ("122", "lost: the lease ended, or the token does not hold the lock");
const REFUSED: Exit =
    ("123", "refused: no module, no permission, a key of another type,\na ttl above the limit");
const USAGE: Exit = ("125", "wrong usage, or lockmod itself failed");
const NOT_EXECUTABLE: Exit = ("126", "run: the command cannot be executed");
const NOT_FOUND: Exit = ("127", "run: the command was not found");
const SIGNAL: Exit = ("128+N", "signal N ended the command");
const CLOSED: Exit = ("141", "nobody read the output to its end, as with `| head -1`");

/// The codes of all commands, for `lockmod --help`.
const ALL: [Exit; 10] = [
    ("0", "done; run: the command's own exit code"),
    CONTENDED,
    NO_QUORUM,
    LOST,
    REFUSED,
    USAGE,
    NOT_EXECUTABLE,
    NOT_FOUND,
    CLOSED,
    SIGNAL,
];

const RUN: [Exit; 9] = [
    ("0..", "the command's own exit code"),
    CONTENDED,
    NO_QUORUM,
    ("122", "lost: the lease ended, and the command was stopped"),
    REFUSED,
    USAGE,
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    (
        "128+N",
        "signal N ended the command; or it ended lockmod while it waited\nfor the lock, or for \
         --at-least to be over",
    ),
];

const LOCK: [Exit; 8] = [
    ("0", "a signal, as of Ctrl-C, ended it, and the lock was released"),
    CONTENDED,
    NO_QUORUM,
    ("122", "lost: the lease ended, or the lock was taken by force"),
    REFUSED,
    USAGE,
    CLOSED,
    ("128+N", "signal N ended it while it waited for the lock"),
];

const ACQUIRE: [Exit; 7] = [
    DONE,
    CONTENDED,
    NO_QUORUM,
    REFUSED,
    USAGE,
    ("141", "nobody read the output, and the lock was released"),
    ("128+N", "signal N ended it while it waited for the lock"),
];
const BY_TOKEN: [Exit; 6] = [DONE, NO_QUORUM, LOST, REFUSED, USAGE, CLOSED];
const LOOK: [Exit; 5] = [
    DONE,
    NO_QUORUM,
    (
        "123",
        "refused: on too many nodes there is no module, no permission, or\na key of another type",
    ),
    USAGE,
    CLOSED,
];
const STATUS: [Exit; 5] = [
    ("0", "a quorum of nodes grants locks"),
    ("121", "no quorum: fewer nodes than a quorum grant locks"),
    (
        "123",
        "refused: so many nodes have no module, or give no permission,\nthat there is no quorum",
    ),
    USAGE,
    CLOSED,
];
const LOCAL: [Exit; 3] = [DONE, USAGE, CLOSED];
const LOCAL_NODES: [Exit; 4] = [DONE, USAGE, CLOSED, ("128+N", "signal N ended it too soon")];

/// The exit codes of a command.
fn codes_of(command: &str) -> &'static [Exit] {
    match command {
        "run" => &RUN,
        "lock" => &LOCK,
        "acquire" => &ACQUIRE,
        "release" | "extend" => &BY_TOKEN,
        "fence" | "info" | "list" => &LOOK,
        "status" => &STATUS,
        "nodes" | "demo" => &LOCAL_NODES,
        _ => &LOCAL,
    }
}

/// The codes as lines of `--help`, short enough for a terminal of 80 columns.
fn listed(codes: &[Exit]) -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, meaning) in codes {
        for (index, line) in meaning.lines().enumerate() {
            let code = if index == 0 { code } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {code:<5}  {line}");
        }
    }
    text
}

/// The default of `--timeout` for commands that request a lease.
const TIMEOUT_BY_TTL: &str = "How long to wait for the answer of each node [default: a twentieth \
                              of --ttl, at least 50ms (or a quarter of --ttl, if that is less) \
                              and at most 500ms]";
const LENGTHS: &str = "\n\nLengths of time are written as 500ms, 5s, 2m, 1h30m or 2d.";

/// The whole definition.
pub(super) fn definition() -> Command {
    let mut command = Arguments::command().after_help(listed(&ALL) + LENGTHS);
    for name in names_of(&command) {
        command = command.mut_subcommand(&name, |sub| complete(&name, sub));
    }
    command
}

fn names_of(command: &Command) -> Vec<String> {
    command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
}

fn has(command: &Command, argument: &str) -> bool {
    command.get_arguments().any(|other| other.get_id() == argument)
}

fn complete(name: &str, command: Command) -> Command {
    let lengths = if has(&command, "timeout") { LENGTHS } else { "" };
    let is_by_ttl = has(&command, "ttl");
    let command = command.after_help(listed(codes_of(name)) + lengths);
    if is_by_ttl { command.mut_arg("timeout", |arg| arg.help(TIMEOUT_BY_TTL)) } else { command }
}

/// Reads the arguments of this process.
///
/// # Errors
/// What is wrong with them, or the requested help.
pub(super) fn read() -> Result<Arguments, clap::Error> {
    let mut definition = without_empty_variables(definition());
    let typed: Vec<OsString> = std::env::args_os().collect();
    let matches = definition.clone().try_get_matches_from(&typed);
    let matches = matches.map_err(|error| as_typed(error, &mut definition, &typed))?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))
}

/// The same error, which names what was typed, with everything that the command takes.
fn as_typed(error: clap::Error, definition: &mut Command, typed: &[OsString]) -> clap::Error {
    definition.build();
    let error = match without_value(definition, typed) {
        Some(flag) if error.use_stderr() => {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(definition);
            error.insert(ContextKind::InvalidArg, ContextValue::String(flag));
            error.insert(ContextKind::InvalidValue, ContextValue::String(String::new()));
            error
        }
        _ => error,
    };
    let mut error = match error.kind() {
        ErrorKind::InvalidUtf8 => match not_text(definition, typed) {
            Some(culprit) => definition.error(error.kind(), format!("{culprit} is not UTF-8 text")),
            None => with_variable(error, definition),
        },
        ErrorKind::UnknownArgument => with_whole_argument(error, typed),
        ErrorKind::MissingRequiredArgument => with_variables(error, definition, typed),
        _ => error,
    };
    // The default usage line treats values from the environment as used, and so shows them as
    // required.
    let command = typed.get(1).and_then(|name| definition.find_subcommand_mut(name));
    if let Some(command) = command.filter(|_| error.get(ContextKind::Usage).is_some()) {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    error
}

/// The argument that cannot be read as text: the first whose repair removes this error, since other
/// arguments may have any bytes. The value of a flag is not shown: it may be a password.
fn not_text(definition: &Command, typed: &[OsString]) -> Option<String> {
    let mut readable = typed.to_vec();
    let bad = typed.iter().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let (at, culprit) = bad.into_iter().find(|(at, argument)| {
        readable[*at] = argument.to_string_lossy().into_owned().into();
        let error = definition.clone().try_get_matches_from(&readable).err();
        error.is_none_or(|error| error.kind() != ErrorKind::InvalidUtf8)
    })?;
    let culprit = Printable(culprit.as_bytes()).to_string();
    let before = typed[at.checked_sub(1)?].to_string_lossy().into_owned();
    let flag = match culprit.split_once('=') {
        Some((flag, _)) if flag.starts_with("--") => Some(flag.to_owned()),
        _ => Some(before).filter(|before| taking_value(definition, typed, before).is_some()),
    };
    Some(flag.map_or(format!("'{culprit}'"), |flag| format!("the value of {flag}")))
}

/// The first flag that takes a value, and is followed by `--` or another flag. Where a value may
/// begin with a hyphen, so that a negative one is refused as such, clap takes that for the value.
fn without_value(definition: &Command, typed: &[OsString]) -> Option<String> {
    let text = |argument: &OsString| argument.to_str().unwrap_or_default().to_owned();
    let pairs = typed.windows(2).map(|pair| (text(&pair[0]), text(&pair[1])));
    let mut pairs = pairs.take_while(|(flag, _)| flag != "--");
    let (flag, _) = pairs.find(|(flag, next)| {
        next.starts_with("--") && taking_value(definition, typed, flag).is_some()
    })?;
    taking_value(definition, typed, &flag).map(ToString::to_string)
}

/// This flag of the typed command, if it takes a value.
fn taking_value<'a>(
    definition: &'a Command,
    typed: &[OsString],
    flag: &str,
) -> Option<&'a clap::Arg> {
    let command = definition.find_subcommand(typed.get(1)?)?;
    let name = flag.strip_prefix("--")?;
    let mut arguments = command.get_arguments().filter(|known| known.get_long() == Some(name));
    arguments.find(|argument| argument.get_action().takes_values())
}

/// The same error, with the whole argument where clap names only its first letter.
fn with_whole_argument(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(letter)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let arguments = typed.iter().map(|argument| argument.to_string_lossy());
    let mut arguments = arguments.take_while(|argument| argument != "--");
    let is_whole = |whole: &str| whole.starts_with(letter.as_str()) && !whole.starts_with("--");
    if letter.starts_with("--") {
        // Hardly anybody means `-- --ttl`: it is a flag of another subcommand.
        error.remove(ContextKind::Suggested);
        return error;
    }
    if !letter.starts_with('-') {
        return error;
    }
    let Some(whole) = arguments.find(|argument| is_whole(argument)) else { return error };
    let tip = format!("to pass '{whole}' as a value, use '-- {whole}'");
    if error.get(ContextKind::Suggested).is_some() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error.insert(ContextKind::InvalidArg, ContextValue::String(whole.into_owned()));
    error
}

/// The same error, with the environment variables that can replace the missing arguments. The
/// argument that requires them may come from such a variable too.
fn with_variables(mut error: clap::Error, definition: &Command, typed: &[OsString]) -> clap::Error {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let named = missing.iter().map(|argument| {
        let name = argument.split_whitespace().next().and_then(|flag| flag.strip_prefix("--"));
        let command = typed.get(1).and_then(|command| definition.find_subcommand(command));
        let mut arguments = command.into_iter().flat_map(Command::get_arguments);
        let known = arguments.find(|known| known.get_long().is_some() && known.get_long() == name);
        match known.and_then(clap::Arg::get_env) {
            Some(variable) => format!("{argument} (or {})", variable.to_string_lossy()),
            None => argument.clone(),
        }
    });
    let named = named.collect();
    error.insert(ContextKind::InvalidArg, ContextValue::Strings(named));
    error
}

/// The same error, with the name of an environment variable that is not UTF-8 text.
fn with_variable(error: clap::Error, definition: &mut Command) -> clap::Error {
    let is_bad = |name: &&std::ffi::OsStr| {
        std::env::var_os(name).is_some_and(|value| value.to_str().is_none())
    };
    let variables = definition.get_subcommands().flat_map(Command::get_arguments);
    let name = variables.filter_map(clap::Arg::get_env).find(is_bad).map(ToOwned::to_owned);
    match name {
        Some(name) => {
            let text = format!("{} is not UTF-8 text", name.to_string_lossy());
            definition.error(ErrorKind::InvalidUtf8, text)
        }
        None => error,
    }
}

/// An empty environment variable counts as not set, as after `export LOCKMOD_CACERT=` in a shell
/// script.
fn without_empty_variables(mut command: Command) -> Command {
    let is_empty = |arg: &clap::Arg| {
        let variable = arg.get_env().and_then(std::env::var_os);
        variable.is_some_and(|value| value.is_empty())
    };
    for name in names_of(&command) {
        command = command.mut_subcommand(name, |mut sub| {
            let empty = sub.get_arguments().filter(|arg| is_empty(arg));
            let empty: Vec<String> = empty.map(|arg| arg.get_id().to_string()).collect();
            for id in empty {
                sub = sub.mut_arg(id, |arg| arg.env(Resettable::<OsStr>::Reset));
            }
            sub
        });
    }
    command
}

/// What is wrong if `--json` was given to a command that does not take it, or before a command.
pub(super) fn misplaced_json(error: &clap::Error) -> Option<String> {
    let is_json = |argument: &ContextValue| argument.to_string() == "--json";
    if error.kind() != ErrorKind::UnknownArgument
        || !error.get(ContextKind::InvalidArg).is_some_and(is_json)
    {
        return None;
    }
    let definition = definition();
    let names = names_of(&definition);
    let takes_json = |name: &&String| {
        definition.find_subcommand(name).is_some_and(|command| has(command, "json"))
    };
    let taking: Vec<&str> = names.iter().filter(takes_json).map(String::as_str).collect();
    let given = std::env::args_os().skip(1).find_map(|given| {
        names.iter().find(|name| given == name.as_str()).filter(|name| !takes_json(name)).cloned()
    });
    Some(match given {
        Some(name) => format!("'{name}' has no --json: only {} have it", taking.join(", ")),
        None => format!("write --json behind one of {}", taking.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }

    #[test]
    fn each_command_lists_its_own_exit_codes_and_the_front_page_all() {
        let known: Vec<&str> = ALL.map(|(code, _)| code).to_vec();
        for command in definition().get_subcommands() {
            let codes = codes_of(command.get_name());
            let is_known = |code: &str| known.contains(&code) || code == "0..";
            assert!(codes.iter().all(|(code, _)| is_known(code)), "{}", command.get_name());
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains(&listed(codes)), "{help}");
        }
        assert!(listed(&ALL).lines().all(|line| line.len() < 80));
    }
}
