//! Commands as values: the table of commands, and the parsing of requests.
//!
//! Knows the engine only. The server and every document take names, arguments and limits from
//! [`spec`]; the server reads requests with [`request`]. What an error means is in [`code`].

pub mod code;
pub mod request;
pub mod restate;
pub mod spec;
