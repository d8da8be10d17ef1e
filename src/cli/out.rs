//! Everything that the command prints goes through this file.
//!
//! It enforces two rules. Every line is made [`Printable`], so that a label, a name or a server's
//! text that a caller forgot to escape cannot reach the terminal as it is. And a closed output ends
//! the command quietly, as it ends other commands.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::stdio::{stderr, stdin, stdout};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::client::Printable;

/// The width of `^C`, which a terminal shows after the line on Ctrl-C: if it wraps to the next
/// line, or fills the last column, the line cannot be removed.
const ECHO: usize = 2;
/// The columns of a terminal that does not report its width.
const COLUMNS_DEFAULT: usize = 80;

/// Whether standard output was closed at the start: the descriptor in its place is not the
/// caller's.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Why nothing was printed to standard output.
#[derive(Debug)]
pub(super) struct Unprinted(pub(super) std::io::Error);

/// Notes which of the standard streams are closed. Nothing can be printed to them then, and a
/// command that is run finds them closed too, instead of the descriptors in their place.
pub(super) fn close([input, output, error]: [bool; 3]) {
    IS_CLOSED.store(output, Ordering::Relaxed);
    let closed = [(input, stdin()), (output, stdout()), (error, stderr())];
    for (_, stream) in closed.into_iter().filter(|(is_closed, _)| *is_closed) {
        // A stream that cannot be marked is passed on as it is.
        let _ = fcntl_setfd(stream, FdFlags::CLOEXEC);
    }
}

fn check() -> std::io::Result<()> {
    if IS_CLOSED.load(Ordering::Relaxed) { Err(Errno::BADF.into()) } else { Ok(()) }
}

/// Prints one line to standard output.
///
/// # Errors
/// If it cannot be written, or its reader has gone.
pub(super) fn line(text: impl Display) -> Result<(), Unprinted> {
    lines([text])
}

/// Prints lines to standard output, all of them at once.
///
/// # Errors
/// If they cannot be written, or their reader has gone.
pub(super) fn lines(lines: impl IntoIterator<Item = impl Display>) -> Result<(), Unprinted> {
    let printable = |line: &dyn Display| format!("{}\n", Printable::text(&line.to_string()));
    let text: String = lines.into_iter().map(|line| printable(&line)).collect();
    bytes(text.as_bytes())
}

/// Writes a script that the command has generated to standard output.
///
/// # Errors
/// If it cannot be written, or its reader has gone.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Unprinted> {
    let mut out = std::io::stdout().lock();
    print(|| out.write_all(bytes).and_then(|()| out.flush()))
}

/// Prints to standard output with `write`, unless it is closed.
///
/// # Errors
/// If it cannot be written, or its reader has gone.
pub(super) fn print(write: impl FnOnce() -> std::io::Result<()>) -> Result<(), Unprinted> {
    check().and_then(|()| write()).map_err(Unprinted)
}

/// Prints an error or a warning on standard error, on one line.
pub(super) fn complain(text: impl Display) {
    let line = format!("{}\n", Printable::text(&text.to_string()));
    // If standard error is closed too, there is nowhere left to print.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Removes the `^C` that a terminal shows for Ctrl-C: the shell's prompt would follow it.
pub(super) fn remove_echo() {
    if std::io::stderr().is_terminal() {
        // A terminal that is gone shows nothing.
        let _ = std::io::stderr().lock().write_all(b"\r\x1b[K");
    }
}

/// The columns of the terminal, if standard output is one.
pub(super) fn columns() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| columns_of(std::io::stdout()))
}

fn columns_of(terminal: impl std::os::fd::AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(terminal);
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { COLUMNS_DEFAULT } else { columns }
}

/// A line on the terminal that is replaced again and again, and removed when this is dropped.
pub(super) struct Progress {
    is_watched: bool,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { is_watched: std::io::stderr().is_terminal(), is_shown: false }
    }

    /// Whether standard error is a terminal.
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// How many columns a line may have.
    pub(super) fn room(&self) -> usize {
        columns_of(std::io::stderr()).saturating_sub(ECHO + 1)
    }

    /// Shows this line, cut to the width of the terminal, in place of the one before.
    pub(super) fn show(&mut self, text: &str) {
        if !self.is_watched {
            return;
        }
        let text = cut(&Printable::text(text).to_string(), self.room());
        self.write(&format!("\r\x1b[K{text}"));
        self.is_shown = true;
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stderr().lock();
        // A terminal that is gone needs no line.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            self.write("\r\x1b[K");
        }
    }
}

/// The number of columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The text, cut to this many columns; `…` replaces the rest.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = head(text, columns.saturating_sub(1)).to_owned();
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// The beginning of a text, as much of it as fits into this many columns.
pub(super) fn head(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > columns
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// The end of a text, as much of it as fits into this many columns.
pub(super) fn tail(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let start = text.char_indices().rev().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > columns
    });
    &text[start.map_or(0, |(at, c)| at + c.len_utf8())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_columns_and_not_to_bytes() {
        assert_eq!(cut("größe", 5), "größe");
        assert_eq!(cut("größer", 5), "größ…");
        assert_eq!(cut("ロック", 6), "ロック");
        assert_eq!(cut("ロック", 5), "ロッ…");
        assert_eq!(cut("ロック", 4), "ロ…");
        assert_eq!((cut("abc", 1), cut("abc", 0)), ("…".to_owned(), String::new()));
        assert_eq!((head("ロック", 3), tail("ロック", 3), tail("ab", 9)), ("ロ", "ク", "ab"));
    }
}
