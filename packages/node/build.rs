//! Makes the linker leave symbols undefined that Node.js provides.

fn main() {
    napi_build::setup();
}
