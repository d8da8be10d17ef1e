//! Just enough JSON to print.

use std::fmt;
use std::time::Duration;

use crate::client::{LockInfo, is_plain};

/// A value to print.
#[derive(Clone, Debug)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    pub(super) fn text(text: impl Into<String>) -> Json {
        Json::Text(text.into())
    }

    pub(super) fn text_or_null(text: Option<&String>) -> Json {
        text.map_or(Json::Null, Json::text)
    }

    pub(super) fn texts(texts: &[String]) -> Json {
        Json::List(texts.iter().map(Json::text).collect())
    }

    /// Fields of a lock, with its name. A name that is not UTF-8 is also given in full, in
    /// hexadecimal digits.
    pub(super) fn of_lock(
        name: &[u8],
        fields: impl IntoIterator<Item = (&'static str, Json)>,
    ) -> Json {
        let mut named = vec![("name", Json::text(String::from_utf8_lossy(name)))];
        if std::str::from_utf8(name).is_err() {
            named.push(("name_hex", Json::text(hex::encode(name))));
        }
        named.extend(fields);
        Json::Object(named)
    }

    /// The label of a lock's holder, in the same way.
    pub(super) fn of_label(info: &LockInfo) -> impl Iterator<Item = (&'static str, Json)> {
        let label = ("label", Json::text_or_null(info.label.as_ref()));
        let raw = info.raw_label.as_ref().map(|raw| ("label_hex", Json::text(hex::encode(raw))));
        std::iter::once(label).chain(raw)
    }

    /// The master that a node's answer is from, if it is known.
    pub(super) fn of_master(master: Option<&str>) -> Option<(&'static str, Json)> {
        master.map(|master| ("master", Json::text(master)))
    }

    pub(super) fn millis(length: Option<Duration>) -> Json {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        length.map_or(Json::Null, |length| Json::Number(millis(length)))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => value.fmt(f),
            Json::Number(number) => number.fmt(f),
            Json::Text(text) => quote(f, text),
            Json::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Json::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}\"{name}\":{value}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            c if is_plain(c) => write!(f, "{c}")?,
            // Escapes more than JSON needs: the output may go to a terminal.
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(f, "\\u{unit:04x}")?;
                }
            }
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_json() {
        let list = Json::List(vec![Json::Null, Json::Number(7), Json::Bool(true)]);
        let object = Json::Object(vec![("a", list), ("b", Json::text("q\"\\\n\u{e9}"))]);
        assert_eq!(object.to_string(), "{\"a\":[null,7,true],\"b\":\"q\\\"\\\\\\u000aé\"}");
        let hostile = Json::text("\u{9b}2J\u{202e}\u{e0041}").to_string();
        assert_eq!(hostile, "\"\\u009b2J\\u202e\\udb40\\udc41\"");
        let names = [&b"a\xff"[..], b"a"].map(|name| Json::of_lock(name, []).to_string());
        assert_eq!(names, ["{\"name\":\"a\u{fffd}\",\"name_hex\":\"61ff\"}", "{\"name\":\"a\"}"]);
        assert_eq!(Json::millis(Some(Duration::from_micros(1_999))).to_string(), "1");
    }
}
