//! Gives the linker the runtime's entry point (src/sys/start.rs), where there is one for the architecture. The shim enters no
//! container and begins as any program.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|list| list.split(',').any(|one| one == value));
    // Code that is not optimised calls memcpy, which a static program has not chosen yet there. Without the entry point
    // `exe::protect` does the same.
    let too_early = is("CARGO_CFG_TARGET_FEATURE", "crt-static") && is("OPT_LEVEL", "0");
    if is("CARGO_CFG_TARGET_ARCH", "x86_64") && !too_early {
        println!("cargo::rustc-link-arg-bin=agentsbx=-Wl,-e,agentsbx_start");
    }
}
