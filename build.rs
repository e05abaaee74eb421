//! Gives the linker the runtime's entry point (src/sys/start.rs), where there is one for the architecture. The shim enters no
//! container and begins as any program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        println!("cargo::rustc-link-arg-bin=agentsbx=-Wl,-e,agentsbx_start");
    }
}
