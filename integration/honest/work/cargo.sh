# A workspace with a build script and a procedural macro of its own: build, test, run.
set -e
cp -r /srv/work/rust "$HOME/crate"
cd "$HOME/crate"
cargo build --offline --quiet
cargo test --offline --quiet 2>&1 | grep '^test result' | sed 's/; finished.*//' | sort | uniq -c | sed 's/^ *//'
cargo run --offline --quiet
