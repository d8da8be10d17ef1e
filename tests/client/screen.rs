//! A terminal for the command: the test reads the screen as a person would, sends keys, and can
//! take a picture.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{spawn, wait_until};

/// A terminal with a command in it, which ends when this value is dropped.
pub(crate) struct Screen {
    child: Child,
    keys: File,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    /// Starts `command` in a terminal of its own, of this size.
    pub(crate) fn start(command: &Command, (columns, rows): (u16, u16)) -> Screen {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let terminal = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();

        // With a session of its own, so that it does not find the terminal of the caller.
        let mut inner = Command::new("setsid");
        inner.arg("--ctty").arg(command.get_program()).args(command.get_args());
        inner.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inner.env("TERM", "xterm-256color");
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        inner.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = spawn(inner).unwrap();

        let size = |cells| NonZero::new(cells).unwrap();
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let mut output = File::from(master);
        let keys = output.try_clone().unwrap();
        let seen = Arc::clone(&parser);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the terminal is an error on Linux.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().process(&bytes[..count]);
            }
        });
        Screen { child, keys, parser }
    }

    pub(crate) fn text(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, is_shown: impl Fn(&str) -> bool) {
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(what, || is_shown(&self.text()));
        }));
        assert!(seen.is_ok(), "waited until {what}; it shows\n{}", self.text());
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code of the command, when it ends.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        wait_until("the command ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// Whether the terminal is restored: the other screen left, the cursor shown.
    pub(crate) fn is_restored(&self) -> bool {
        let parser = self.parser.lock().unwrap();
        !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
    }

    /// What is shown, as a picture in SVG.
    pub(crate) fn picture(&self) -> String {
        const WIDTH: f32 = 8.4;
        const HEIGHT: u16 = 18;
        let parser = self.parser.lock().unwrap();
        let screen = parser.screen();
        let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
        let (width, height) = (f32::from(columns) * WIDTH + 20.0, rows * HEIGHT + 20);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"14\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n"
        );
        for row in 0..rows {
            let mut column = 0;
            while column < columns {
                let look = look(screen, row, column);
                let start = column;
                let mut text = String::new();
                while column < columns && self::look(screen, row, column) == look {
                    let cell = screen.cell(row, column).map(vt100::Cell::contents);
                    text.push_str(cell.filter(|text| !text.is_empty()).unwrap_or(" "));
                    column += 1;
                }
                let (color, back, style) = look;
                let (x, y) = (10.0 + f32::from(start) * WIDTH, 10 + row * HEIGHT);
                let length = f32::from(column - start) * WIDTH;
                if let Some(back) = back {
                    let place = format!("x=\"{x:.1}\" y=\"{y}\" width=\"{length:.1}\"");
                    let _ = writeln!(svg, "<rect {place} height=\"{HEIGHT}\" fill=\"{back}\"/>");
                }
                for (offset, word) in words(&text) {
                    let x = x + offset as f32 * WIDTH;
                    let length = word.chars().count() as f32 * WIDTH;
                    let place = format!("x=\"{x:.1}\" y=\"{}\" textLength=\"{length:.1}\"", y + 14);
                    let word = word.replace('&', "&amp;").replace('<', "&lt;");
                    let _ = writeln!(
                        svg,
                        "<text {place} xml:space=\"preserve\" fill=\"{color}\"{style}>{word}</text>"
                    );
                }
            }
        }
        svg + "</svg>\n"
    }
}

/// The texts between wide gaps, with their columns: each keeps its place in any typeface.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let (mut start, mut rest) = (0, text);
    while !rest.trim().is_empty() {
        let blanks = rest.len() - rest.trim_start().len();
        rest = &rest[blanks..];
        let end = rest.find("  ").unwrap_or(rest.len());
        words.push((start + blanks, &rest[..end]));
        start += blanks + rest[..end].chars().count();
        rest = &rest[end..];
    }
    words
}

/// Colour, background and weight of a cell.
fn look(screen: &vt100::Screen, row: u16, column: u16) -> (&'static str, Option<&str>, &str) {
    const TEXT: &str = "#d7dae0";
    let Some(cell) = screen.cell(row, column) else { return (TEXT, None, "") };
    let color = match cell.fgcolor() {
        vt100::Color::Idx(1) => "#ff6b68",
        vt100::Color::Idx(2) => "#7ec77e",
        vt100::Color::Idx(3) => "#e6c15c",
        _ if cell.dim() => "#8a909c",
        _ => TEXT,
    };
    let weight = if cell.bold() { " font-weight=\"bold\"" } else { "" };
    if cell.inverse() { ("#16181d", Some(TEXT), weight) } else { (color, None, weight) }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
