//! `-info`: what the runtime can do, asked by containerd before any container is made.

use std::io::Read;
use std::process::{Command, Stdio};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};

use super::ShimError;
use super::options::Options;

/// The runtime's name in containerd.
pub const NAME: &str = "io.containerd.agentsbx.v1";
/// The type by which containerd knows the runtime specification's features document.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";
/// The largest features document, in bytes.
const FEATURES_MAX: u64 = 1 << 20;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that it was built from.
pub const REVISION: &str = match option_env!("AGENTSBX_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Answers `-info`: `input` is what containerd wrote to standard input, the options in an `Any` or nothing; the result is
/// for standard output.
///
/// # Errors
/// Where the input is not understood, or the runtime that it names can't be run.
pub fn info(input: &[u8]) -> Result<Vec<u8>, ShimError> {
    let any = Any::parse_from_bytes(input)
        .map_err(|err| ShimError::Invalid(format!("standard input is no options of containerd's: {err}")))?;
    let any = Some(any).filter(|any| !any.type_url.is_empty());
    let saved = Options::of(any.as_ref())?.saved("", None);
    let features = Any { type_url: FEATURES.into(), value: features(&saved.runtime)?, ..Any::default() };
    let version = RuntimeVersion { version: VERSION.into(), revision: REVISION.into(), ..RuntimeVersion::default() };
    let info = RuntimeInfo {
        name: NAME.into(),
        version: Some(version).into(),
        options: any.into(),
        features: Some(features).into(),
        ..RuntimeInfo::default()
    };
    info.write_to_bytes().map_err(|err| ShimError::Invalid(format!("the answer: {err}")))
}

/// What the runtime says of itself: a JSON document.
fn features(runtime: &std::path::Path) -> Result<Vec<u8>, ShimError> {
    let mut child = Command::new(runtime)
        .arg("features")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(ShimError::io("start the runtime", runtime))?;
    let mut text = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |pipe| pipe.take(FEATURES_MAX).read_to_end(&mut text));
    let status = child.wait().map_err(ShimError::io("wait for", runtime))?;
    read.map_err(ShimError::io("read the features of", runtime))?;
    let failed = |message: String| ShimError::Runtime { doing: "features", message };
    if !status.success() {
        return Err(failed(format!("{} features: {status}", runtime.display())));
    }
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text) {
        Ok(_) => Ok(text),
        Err(err) => Err(failed(format!("{} features: {err}", runtime.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable;
    use containerd_shim_protos::shim::oci;

    #[test]
    fn the_runtime_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("runtime");
        let of = |script: &str| {
            durable::replace_unsynced(&program, script.as_bytes(), 0o755).unwrap();
            let options = oci::Options { binary_name: program.display().to_string(), ..oci::Options::default() };
            let value = options.write_to_bytes().unwrap();
            let any = Any { type_url: "containerd.runc.v1.Options".into(), value, ..Any::default() };
            info(&any.write_to_bytes().unwrap()).map(|bytes| RuntimeInfo::parse_from_bytes(&bytes).unwrap())
        };
        let info = of("#!/bin/sh\n[ $1 = features ] && printf '{\"ociVersionMin\": \"1.0.0\"}'\n").unwrap();
        assert_eq!((info.name.as_str(), info.version.version.as_str()), (NAME, VERSION));
        assert_eq!(info.options.type_url, "containerd.runc.v1.Options");
        assert_eq!((info.features.type_url.as_str(), info.features.value.len()), (FEATURES, 26));
        for bad in ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho '[]'\n", "#!/no/such/shell\n"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        super::info(&[0xff; 7]).unwrap_err();
    }
}
