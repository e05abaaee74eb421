//! Writes a source file and compiles one of C.
use std::{env, fs, path::Path, process::Command};

fn main() {
    let out = env::var("OUT_DIR").unwrap();
    fs::write(Path::new(&out).join("made.rs"), "pub const MADE: &str = \"by the build script\";\n").unwrap();
    let object = Path::new(&out).join("twice.o");
    let archive = Path::new(&out).join("libtwice.a");
    assert!(Command::new("cc").args(["-c", "src/twice.c", "-o"]).arg(&object).status().unwrap().success());
    assert!(Command::new("ar").arg("crs").arg(&archive).arg(&object).status().unwrap().success());
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=twice");
    println!("cargo:rerun-if-changed=src/twice.c");
}
