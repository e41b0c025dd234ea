//! Passes the linker's options for Node's modules.

fn main() {
    napi_build::setup();
}
