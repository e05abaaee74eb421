//! Gives the linker the program's entry point (src/sys/start.rs), where there is one for the architecture.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        println!("cargo::rustc-link-arg-bins=-Wl,-e,agentsbx_start");
    }
}
