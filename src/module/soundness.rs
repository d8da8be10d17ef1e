//! What safe code cannot write over the server's interface, shown by examples that do not compile,
//! each after one that does.
//!
//! # Two open keys
//!
//! Both may be the same lock, of which there must be one `&mut Lock`. One after the other they are
//! fine:
//!
//! ```
//! use lockmod::soundness::{Args, Context, Found};
//!
//! fn of_one(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut first = context.open(args, 1);
//!     if let Found::Lock(lock) = first.find() {
//!         assert!(lock.counter().get() > 0);
//!     }
//!     drop(first);
//!     let mut second = context.open(args, 1);
//!     second.find();
//! }
//! ```
//!
//! ```compile_fail,E0499
//! use lockmod::soundness::{Args, Context, Found};
//!
//! fn of_two(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut first = context.open(args, 1);
//!     if let Found::Lock(lock) = first.find() {
//!         let mut second = context.open(args, 1);
//!         second.find();
//!         assert!(lock.counter().get() > 0);
//!     }
//! }
//! ```
//!
//! A second context does not help, because it cannot be had:
//!
//! ```
//! use lockmod::soundness::Context;
//!
//! fn one<'c, 'a>(context: &'c mut Context<'a>) -> &'c mut Context<'a> {
//!     context
//! }
//! ```
//!
//! ```compile_fail,E0507
//! use lockmod::soundness::Context;
//!
//! fn another<'c, 'a>(context: &'c mut Context<'a>) -> Context<'a> {
//!     *context
//! }
//! ```
//!
//! # A call in which the server may call back
//!
//! Other modules hear of a notification at once, and may send a command about the same lock.
//!
//! ```
//! use lockmod::soundness::{Args, Context};
//!
//! fn notify_when_closed(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut key = context.open(args, 1);
//!     key.find();
//!     drop(key);
//!     context.notify(c"lock.acquire", args, 1);
//! }
//! ```
//!
//! ```compile_fail,E0499
//! use lockmod::soundness::{Args, Context};
//!
//! fn notify_while_open(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut key = context.open(args, 1);
//!     key.find();
//!     context.notify(c"lock.acquire", args, 1);
//!     drop(key);
//! }
//! ```
//!
//! # A key in a scan
//!
//! A scan shows every lock, that of the key too.
//!
//! ```
//! use lockmod::soundness::{Args, Context, Cursor};
//!
//! fn scan_then_open(context: &mut Context<'_>, args: &Args<'_>, cursor: &mut Cursor) {
//!     context.scan(cursor, 1, &mut |_, lock| assert!(lock.counter().get() > 0));
//!     context.open(args, 1).find();
//! }
//! ```
//!
//! ```compile_fail,E0499
//! use lockmod::soundness::{Args, Context, Cursor};
//!
//! fn open_in_a_scan(context: &mut Context<'_>, args: &Args<'_>, cursor: &mut Cursor) {
//!     context.scan(cursor, 1, &mut |_, lock| {
//!         context.open(args, 1).find();
//!         assert!(lock.counter().get() > 0);
//!     });
//! }
//! ```

pub use super::ffi::{Args, Context, Cursor, Found, Key};
