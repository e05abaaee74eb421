//! The root filesystem made ready before libcontainer works in it, and refused where it would lead libcontainer out.

use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};

use super::error::{On, RuntimeError};
use crate::spec::{Config, SpecError, inroot, normalise};

/// What libcontainer makes in `/dev` and fails on if it is there already.
const DEV_ENTRIES: [&str; 11] =
    ["kcore", "fd", "stdin", "stdout", "stderr", "null", "zero", "full", "tty", "urandom", "random"];

/// Prepares `rootfs`, opened as `root`. `config` is the normalised configuration.
pub fn prepare(config: &Config, rootfs: &Path, root: &std::os::fd::OwnedFd) -> Result<(), RuntimeError> {
    let mounts = config.mounts();
    let on_dev = mounts.iter().any(|m| normalise::clean_absolute(&m.destination) == Path::new("/dev"));
    let dev = inroot::file_type(root, Path::new("/dev")).on("look at /dev in", rootfs)?;
    if !matches!(dev, None | Some(FileType::Directory)) {
        // libcontainer makes device files by the path ROOTFS/dev, and would follow a link out of the root.
        return Err(SpecError::Field { field: "root.path", why: "/dev in it is not a directory".into() }.into());
    }
    if !on_dev && dev.is_some() {
        clear_dev(rootfs, root)?;
        plain_device_paths(config, root)?;
    }
    make_cwd(config, root);
    Ok(())
}

/// Removes links and device files of an earlier run, if the root filesystem itself holds `/dev`.
fn clear_dev(rootfs: &Path, root: &std::os::fd::OwnedFd) -> Result<(), RuntimeError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let dev = rustix::fs::openat2(root, "dev", flags, Mode::empty(), resolve).on("open /dev in", rootfs)?;
    for name in DEV_ENTRIES {
        let Ok(stat) = rustix::fs::statat(&dev, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if matches!(FileType::from_raw_mode(stat.st_mode), FileType::Symlink | FileType::CharacterDevice) {
            rustix::fs::unlinkat(&dev, name, AtFlags::empty()).on("remove stale device in /dev of", rootfs)?;
        }
    }
    Ok(())
}

/// libcontainer makes device files by path, so no directory on the way may be a link of the image.
fn plain_device_paths(config: &Config, root: &std::os::fd::OwnedFd) -> Result<(), RuntimeError> {
    let devices = config.value().pointer("/linux/devices").and_then(serde_json::Value::as_array);
    for path in devices.into_iter().flatten().filter_map(|d| d["path"].as_str()) {
        let clean = normalise::clean_absolute(Path::new(path));
        let parent = clean.parent().unwrap_or(Path::new("/"));
        let real = inroot::resolve(root, parent).on("look at directory of device", &clean)?;
        if real != parent {
            let why = format!("the directory of {path} is a symbolic link in the root filesystem");
            return Err(SpecError::Field { field: "linux.devices", why }.into());
        }
    }
    Ok(())
}

/// Makes the working directory if it is missing, in the root filesystem or in the bind mount that covers it.
/// What fails here shows as a failed chdir, with the text that callers know.
fn make_cwd(config: &Config, root: &std::os::fd::OwnedFd) {
    let cwd = normalise::clean_absolute(Path::new(config.cwd()));
    let owner = config.host_uid(0).zip(config.host_gid(0)).filter(|ids| *ids != (0, 0));
    let Ok(target) = inroot::resolve(root, &cwd) else { return };
    let covering = config
        .mounts()
        .into_iter()
        .map(|m| (normalise::clean_absolute(&m.destination), m))
        .filter(|(at, _)| target.starts_with(at))
        .max_by_key(|(at, _)| at.components().count());
    let _ = match covering {
        None => inroot::make_dirs(root, &target, 0o755, owner).map(drop),
        Some((at, mount)) if mount.is_bind() => {
            let inner = target.strip_prefix(&at).unwrap_or(Path::new(""));
            mount.source.map_or(Ok(()), |source| {
                let source = inroot::open_root(&source)?;
                inroot::make_dirs(source, inner, 0o755, owner).map(drop)
            })
        }
        Some(_) => Ok(()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_dev_that_leads_out_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/dev", dir.path().join("dev")).unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        for mounts in [json!([]), json!([{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}])] {
            let config = Config::from_value(json!({"process": {"cwd": "/"}, "mounts": mounts}));
            assert!(prepare(&config, dir.path(), &root).is_err());
        }
    }

    #[test]
    fn a_device_below_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        symlink("/tmp", dir.path().join("dev/out")).unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let with =
            |path: &str| Config::from_value(json!({"process": {"cwd": "/"}, "linux": {"devices": [{"path": path}]}}));
        assert!(prepare(&with("/dev/out/x"), dir.path(), &root).is_err());
        prepare(&with("/dev/in/x"), dir.path(), &root).unwrap();
    }

    #[test]
    fn stale_links_go_and_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        symlink("/proc/self/fd", dir.path().join("dev/fd")).unwrap();
        std::fs::create_dir(dir.path().join("dev/null")).unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let config = Config::from_value(json!({"process": {"cwd": "/work/in"}}));
        prepare(&config, dir.path(), &root).unwrap();
        assert!(std::fs::symlink_metadata(dir.path().join("dev/fd")).is_err());
        assert!(dir.path().join("dev/null").is_dir(), "what is not ours is left to fail loudly");
        assert!(dir.path().join("work/in").is_dir());
    }

    #[test]
    fn a_missing_cwd_is_made_in_the_volume_that_covers_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = tempfile::tempdir().unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let mounts = json!([{"destination": "/v", "type": "bind", "source": volume.path()}]);
        prepare(&Config::from_value(json!({"process": {"cwd": "/v/a"}, "mounts": mounts})), dir.path(), &root).unwrap();
        assert!(volume.path().join("a").is_dir());
    }
}
