//! Has the linker leave to Node.js what it brings itself.

fn main() {
    napi_build::setup();
}
