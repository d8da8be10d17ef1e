//! Commands as values: the table of commands, and the parsing of requests.
//!
//! Knows the engine only. The server and every document take names, arguments and limits from
//! [`spec`]; the server reads requests with [`request`].

pub mod request;
pub mod spec;
