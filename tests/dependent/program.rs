//! A program that takes a lock and writes with its fence, over connections of its own.

use lockmod::client::Locker;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = redis::Client::open("redis://127.0.0.1:6379")?;
    let mut store = store.get_multiplexed_async_connection().await?;
    let locker = Locker::builder().node("rediss://127.0.0.1:6380").build()?;
    let guard = locker.acquire("nightly-report").await?;
    let fence: u64 = guard.fence().into();
    redis::cmd("SET").arg("report").arg(fence).exec_async(&mut store).await?;
    guard.release().await?;
    Ok(())
}
