//! Makes text from others fit for a terminal, a log or a one-line error.
//!
//! Labels, lock names and texts of servers are bytes that anyone may choose. Printed as they are,
//! they could clear a screen, forge a line of a log, or make one name look like another. Each of
//! them passes through [`Printable`], the only place that decides what may stay as it is.

use std::collections::BTreeMap;
use std::{fmt, io};

/// Characters that have no width or look blank, so that two names could look the same. The standard
/// library considers them printable.
const BLANK: [std::ops::RangeInclusive<char>; 9] = [
    '\u{34f}'..='\u{34f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{e0100}'..='\u{e01ef}',
];

/// Shows bytes, and escapes everything that does not simply appear as itself: control characters
/// (`\x1b`, `\n`), bytes that are not UTF-8 (`\xff`), and characters that turn the direction of the
/// text or have no width (`\u{202e}`). A backslash stays as it is, so nothing is escaped twice.
pub(crate) struct Printable<'a>(pub(crate) &'a [u8]);

impl<'a> Printable<'a> {
    /// The same for text.
    pub(crate) const fn text(text: &'a str) -> Printable<'a> {
        Printable(text.as_bytes())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    ' '..='~' => fmt::Write::write_char(f, c)?,
                    c if c.is_ascii() => write!(f, "{}", std::ascii::escape_default(c as u8))?,
                    c if is_plain(c) => fmt::Write::write_char(f, c)?,
                    c => write!(f, "{}", c.escape_unicode())?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

/// Shows the name of a lock so that no two names look the same: like [`Printable`], but a backslash
/// is doubled, and blanks at either end are `\x20`.
pub(crate) struct PrintableName<'a>(pub(crate) &'a [u8]);

impl fmt::Display for PrintableName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_blank = |byte: &&u8| **byte == b' ';
        let before = self.0.iter().take_while(is_blank).count();
        let behind = self.0[before..].iter().rev().take_while(is_blank).count();
        f.write_str(&r"\x20".repeat(before))?;
        let middle = &self.0[before..self.0.len() - behind];
        for (index, part) in middle.split(|&byte| byte == b'\\').enumerate() {
            f.write_str(if index > 0 { r"\\" } else { "" })?;
            Printable(part).fmt(f)?;
        }
        f.write_str(&r"\x20".repeat(behind))
    }
}

/// A name of a lock as `PrintableName` shows it; for a long one, the beginning and the length.
pub struct InShort<'a>(pub &'a [u8]);

/// A map by lock name, for `Debug` output.
pub(super) struct Named<'a, T>(pub(super) &'a BTreeMap<Vec<u8>, T>);

impl<T: fmt::Debug> fmt::Debug for Named<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, of)| (InShort(name), of))).finish()
    }
}

/// The most bytes of a name that a message shows.
const SHOWN_MAX: usize = 256;

/// In quotes, for `Debug` output.
impl fmt::Debug for InShort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for InShort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InShort(name) = self;
        if name.len() <= SHOWN_MAX {
            return PrintableName(name).fmt(f);
        }
        // Does not cut within a character.
        let is_within = |byte: &u8| byte & 0xc0 == 0x80;
        let inside = name[..=SHOWN_MAX].iter().rev().take_while(|byte| is_within(byte)).count();
        let shown = PrintableName(&name[..SHOWN_MAX - inside.min(3)]);
        write!(f, "{shown}... ({} bytes)", name.len())
    }
}

/// In quotes, for `Debug` output.
impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The first texts of a list, and how many more of `all` there are.
pub(crate) fn listed(mut first: Vec<String>, all: usize, between: &str) -> String {
    let more = all.saturating_sub(first.len());
    first.extend((more > 0).then(|| format!("{more} more")));
    first.join(between)
}

/// Whether a character appears as itself, and has a width.
pub(crate) fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // Tested behind another character, so that an accent counts as printable, as it is in a name.
    let mut bytes = *b"x\0\0\0\0";
    let length = 1 + c.encode_utf8(&mut bytes[1..]).len();
    let is_printable =
        str::from_utf8(&bytes[..length]).is_ok_and(|text| text.escape_debug().count() == 2);
    is_printable && !BLANK.iter().any(|blank| blank.contains(&c))
}

/// An I/O error in the words of the operating system, without its number.
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        Printable(bytes).to_string()
    }

    #[test]
    fn ordinary_text_of_any_script_stays_as_it_is() {
        for text in ["größe:7", "a b'\"\\n", "ロック", "قفل", "e\u{301}", "🔒", "", "नमस्ते"]
        {
            assert_eq!(shown(text.as_bytes()), text);
        }
    }

    #[test]
    fn no_two_names_look_the_same() {
        for (name, shown) in [
            ("a\nb", r"a\nb"),
            (r"a\nb", r"a\\nb"),
            (" a b ", r"\x20a b\x20"),
            (r"\x20a", r"\\x20a"),
            ("  ", r"\x20\x20"),
            ("größe", "größe"),
            (r"\", r"\\"),
            ("", ""),
        ] {
            assert_eq!(PrintableName(name.as_bytes()).to_string(), shown);
        }
    }

    #[test]
    fn of_a_long_name_the_beginning_and_the_length_are_shown() {
        let shown = |name: &str| InShort(name.as_bytes()).to_string();
        assert_eq!(shown(&"n".repeat(SHOWN_MAX)), "n".repeat(SHOWN_MAX));
        let long = "n".repeat(SHOWN_MAX + 1);
        assert_eq!(shown(&long), format!("{}... (257 bytes)", &long[1..]));
        for before in 0..4 {
            let long = "n".repeat(before) + &"🔒".repeat(SHOWN_MAX);
            let said = shown(&long);
            assert!(said.ends_with(&format!("🔒... ({} bytes)", long.len())), "{said}");
        }
        assert_eq!(InShort(&[0x80; 300]).to_string().matches("\\x80").count(), SHOWN_MAX - 3);
    }

    #[test]
    fn what_plays_with_the_terminal_or_the_reader_is_escaped() {
        for (bytes, expected) in [
            (&b"a\x1b[2Jb"[..], "a\\x1b[2Jb"),
            (b"\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
            (b"\xff\r\n\t\x00\x7f", "\\xff\\r\\n\\t\\x00\\x7f"),
            ("a\u{9b}2Jb\u{85}".as_bytes(), "a\\u{9b}2Jb\\u{85}"),
            ("\u{202e}gpj".as_bytes(), "\\u{202e}gpj"),
            ("a\u{200b}b\u{feff}".as_bytes(), "a\\u{200b}b\\u{feff}"),
            ("a\u{2028}b\u{2066}c\u{e0041}".as_bytes(), "a\\u{2028}b\\u{2066}c\\u{e0041}"),
            ("a\u{ad}\u{34f}\u{3164}\u{fe0f}".as_bytes(), "a\\u{ad}\\u{34f}\\u{3164}\\u{fe0f}"),
        ] {
            assert_eq!(shown(bytes), expected);
            assert_eq!(shown(expected.as_bytes()), expected, "nothing is escaped twice");
        }
    }
}
