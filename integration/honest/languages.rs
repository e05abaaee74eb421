//! Package managers, compilers and test runners of the languages that agents write.

use super::Work;

#[test]
fn pip_installs_wheels_and_builds_an_extension() {
    Work::new(
        "pip.sh",
        "numpy 2.2.6 2248972 1.0
         venv &lt;b&gt; True
         user &amp; True
         root: system 24.1 /usr/local/lib/python3.*/dist-packages/packaging/__init__.py
         root: system without it
         MarkupSafe==2.1.5
         numpy==2.2.6
         pytest==8.3.3",
    )
    .makes(&["venv/bin/pip", "venv/pyvenv.cfg"])
    .works();
}

#[test]
fn pytest_with_processes_threads_and_sockets() {
    Work::new(
        "pytest.sh",
        "24 passed
         tests=\"24\"",
    )
    .makes(&["report.xml", "project/test_everything.py"])
    .works();
}

#[test]
fn npm_installs_and_builds_an_addon() {
    Work::new(
        "npm.sh",
        "fill 1,2,3,4,5
         agentsbx-addon-1.0.0.tgz
         addon 42 10
         has agentsbx-addon
         has fill-range
         hello from *",
    )
    .makes(&["app/node_modules/agentsbx-addon/build/Release/addon.node", "app/package-lock.json"])
    .works();
}

#[test]
fn node_with_workers_children_and_servers() {
    Work::new(
        "node.sh",
        "workers 500501,1001002,1501503,2002004
         child 42
         pipe through a pipe
         fork message
         http path /a
         cluster true
         watch watched
         gzip 1048576
         scrypt 32
         jit *
         wasm 42
         os true true true
         # pass 2",
    )
    .makes(&["tests.tap"])
    .works();
}

#[test]
fn gnu_hello_is_configured_built_and_checked() {
    Work::new(
        "hello.sh",
        "# PASS:  4
         # FAIL:  0
         built and run",
    )
    .makes(&["build/config.status", "installed/bin/hello"])
    .crosswise()
    .works();
}

#[test]
fn zlib_is_built_and_linked() {
    Work::new(
        "zlib.sh",
        "*** zlib test OK ***
         *** zlib shared test OK ***
         *** zlib 64-bit test OK ***
         linked 1 100000
         caught 120000",
    )
    .makes(&["zlib/installed/lib/libz.a", "zlib/threads"])
    .crosswise()
    .works();
}

#[test]
fn cargo_builds_and_tests_a_crate() {
    Work::new(
        "cargo.sh",
        "1 test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
         Thing 42 by the build script 28 TCP",
    )
    .makes(&["crate/target/debug/honest", "crate/Cargo.lock"])
    .works();
}

#[test]
fn go_vets_tests_and_builds_a_module() {
    Work::new(
        "go.sh",
        "ok  \thonest
         sum 1999000
         http path /x
         cgo 42
         exec child <nil>
         signal user defined signal 1
         collected true",
    )
    .makes(&["module/program"])
    .works();
}

#[test]
fn java_compiles_and_runs_under_each_collector() {
    Work::new(
        "java.sh",
        "threads 0 true
         parallel 142858
         http 200 path /x
         child child 0
         mapped 42
         watch made
         collected true 20
         collected true 20
         collected true 20
         collected true 20
         collected true 20
         1",
    )
    .makes(&["java/honest.jar"])
    .crosswise()
    .works();
}
