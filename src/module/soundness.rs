//! Mistakes that safe code cannot make with the server's interface: examples that do not compile,
//! each after one that does.
//!
//! # Two open keys
//!
//! Both may be the same lock, and there must be only one `&mut Lock` to it. One after the other is
//! fine:
//!
//! ```
//! use lockmod::soundness::{Args, Context, AtKey};
//!
//! fn of_one(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut first = context.open(args, 1);
//!     if let AtKey::Lock(lock) = first.find() {
//!         assert!(lock.counter().get() > 0);
//!     }
//!     drop(first);
//!     let mut second = context.open(args, 1);
//!     second.find();
//! }
//! ```
//!
//! ```compile_fail,E0499
//! use lockmod::soundness::{Args, Context, AtKey};
//!
//! fn of_two(context: &mut Context<'_>, args: &Args<'_>) {
//!     let mut first = context.open(args, 1);
//!     if let AtKey::Lock(lock) = first.find() {
//!         let mut second = context.open(args, 1);
//!         second.find();
//!         assert!(lock.counter().get() > 0);
//!     }
//! }
//! ```
//!
//! A second context cannot be obtained either:
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
//! Other modules receive a notification at once, and may run a command on the same lock.
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
//! A scan shows every lock, including that of an open key.
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
//!
//! # Guarded state on another thread
//!
//! ```
//! use lockmod::soundness::{Context, Guarded};
//!
//! static COUNT: Guarded<u64> = Guarded::new(0);
//!
//! fn count_here(context: &mut Context<'_>) {
//!     let server = context.in_server();
//!     COUNT.with(server, |count| *count += 1);
//!     std::thread::scope(|scope| scope.spawn(|| println!("the state is not used")).join()).ok();
//! }
//! ```
//!
//! The proof cannot be sent to a thread:
//!
//! ```compile_fail,E0277
//! use lockmod::soundness::{Context, Guarded};
//!
//! static COUNT: Guarded<u64> = Guarded::new(0);
//!
//! fn count_there(context: &mut Context<'_>) {
//!     let server = context.in_server();
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| COUNT.with(server, |count| *count += 1)).join()
//!     }).ok();
//! }
//! ```
//!
//! Nor can the context, which hands it out:
//!
//! ```compile_fail,E0277
//! use lockmod::soundness::{Context, Guarded};
//!
//! static COUNT: Guarded<u64> = Guarded::new(0);
//!
//! fn count_there(context: &mut Context<'_>) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| COUNT.with(context.in_server(), |count| *count += 1)).join()
//!     }).ok();
//! }
//! ```
//!
//! # A proof that is kept
//!
//! The callback's thread may not have the server's lock later.
//!
//! ```
//! use lockmod::soundness::{Context, InServer};
//!
//! fn hand_on<'a>(context: &mut Context<'a>, kept: &mut Option<InServer<'a>>) {
//!     *kept = Some(context.in_server());
//! }
//! ```
//!
//! ```compile_fail
//! use lockmod::soundness::{Context, InServer};
//!
//! fn keep(context: &mut Context<'_>, kept: &mut Option<InServer<'static>>) {
//!     *kept = Some(context.in_server());
//! }
//! ```

pub use super::ffi::{Args, AtKey, Context, Cursor, Guarded, InServer, Key};
