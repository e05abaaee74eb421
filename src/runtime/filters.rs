//! Compiled seccomp filters, kept from one container to the next: hardly any two containers of a host have another profile,
//! and to compile one takes longer than all else that a create computes.
//!
//! An entry's name is a digest of all that the program was made of, so that there is nothing to invalidate; its content
//! begins with a digest of the rest. What can't be read, or is not what was written, is compiled anew: without the cache a
//! create is slower, and never another.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::durable;
use crate::policy::seccomp::{Program, Strictness, compiler};

/// The cache's directory among the state directories: no container can have such an id.
const DIRECTORY: &str = "@seccomp";

/// How many programs are kept.
const ENTRIES: usize = 32;

/// The longest entry in bytes: digest, flags, 4096 instructions.
const MAX_BYTES: u64 = 32 + 4 + 4096 * 8;

/// A place for one program.
#[derive(Debug)]
pub struct Slot {
    dir: PathBuf,
    name: String,
}

impl Slot {
    /// The place of what `profile` (`linux.seccomp` as the configuration has it) compiles to with `strictness`, below the
    /// directory of the state directories. None where this program can't be told from another build of it.
    pub fn of(root: &Path, profile: &serde_json::Value, strictness: Option<&Strictness>) -> Option<Slot> {
        let exe = fs::metadata("/proc/self/exe").ok()?;
        let build = [exe.dev(), exe.ino(), exe.size(), exe.mtime() as u64, exe.mtime_nsec() as u64, exe.ctime() as u64];
        let made_of = serde_json::to_vec(&(build, compiler(), strictness, profile)).ok()?;
        let name = durable::hex(&Sha256::digest(made_of));
        Some(Slot { dir: root.join(DIRECTORY), name })
    }

    /// What was put there.
    pub fn get(&self) -> Option<Program> {
        let mut bytes = Vec::new();
        let file =
            File::from(open_own(&open_own(CWD, &self.dir, FileType::Directory)?, &self.name, FileType::RegularFile)?);
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
        let (digest, rest) = bytes.split_at_checked(32)?;
        let (flags, instructions) = rest.split_first_chunk::<4>()?;
        let whole =
            digest == Sha256::digest(rest).as_slice() && !instructions.is_empty() && instructions.len() % 8 == 0;
        whole.then(|| Program { instructions: instructions.to_vec(), flags: u32::from_le_bytes(*flags) })
    }

    /// Puts a program there, and takes the oldest away where there are too many. Whether it could is nothing to a create.
    pub fn put(&self, program: &Program) {
        let rest = [&program.flags.to_le_bytes(), program.instructions.as_slice()].concat();
        let entry = [Sha256::digest(&rest).as_slice(), &rest].concat();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        if open_own(CWD, &self.dir, FileType::Directory).is_none() {
            return;
        }
        let _ = made.and_then(|()| {
            durable::sweep(&self.dir)?;
            self.make_room()?;
            durable::replace_unsynced(&self.dir.join(&self.name), &entry, 0o600)
        });
    }

    /// Leaves room for one more.
    fn make_room(&self) -> std::io::Result<()> {
        let age = |entry: fs::DirEntry| -> Option<(SystemTime, PathBuf)> {
            // What is no file nobody made here.
            let file = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((file.modified().ok()?, entry.path()))
        };
        let mut entries: Vec<_> = fs::read_dir(&self.dir)?.flatten().filter_map(age).collect();
        entries.sort();
        let over = (entries.len() + 1).saturating_sub(ENTRIES);
        entries.iter().take(over).try_for_each(|(_, path)| durable::remove_file(path))
    }
}

/// What is there, if it is of this type and nobody but us can write to it: a filter of somebody else's making is none. A
/// link is not followed, and a pipe not waited for.
fn open_own(dir: impl AsFd, name: impl rustix::path::Arg, kind: FileType) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let others = Mode::WGRP | Mode::WOTH;
    let own = stat.st_uid == rustix::process::geteuid().as_raw()
        && !Mode::from_raw_mode(stat.st_mode).intersects(others)
        && FileType::from_raw_mode(stat.st_mode) == kind;
    own.then_some(fd)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn program(n: u8) -> Program {
        Program { instructions: vec![n; 16], flags: u32::from(n) << 8 }
    }

    fn slot(root: &Path, n: usize) -> Slot {
        Slot::of(root, &json!({"defaultAction": "SCMP_ACT_ALLOW", "n": n}), None).unwrap()
    }

    #[test]
    fn what_was_put_is_there_for_the_same_alone() {
        let root = tempfile::tempdir().unwrap();
        let strict = Strictness::default();
        let allowing = Strictness { allow: vec!["bpf".into()], ..Strictness::default() };
        let tracing = Strictness { ptrace: true, ..Strictness::default() };
        let profiles =
            [json!(null), json!({"defaultAction": "SCMP_ACT_ALLOW"}), json!({"defaultAction": "SCMP_ACT_LOG"})];
        let slots: Vec<Slot> = profiles
            .iter()
            .flat_map(|profile| [None, Some(&strict), Some(&allowing), Some(&tracing)].map(|how| (profile, how)))
            .map(|(profile, how)| Slot::of(root.path(), profile, how).unwrap())
            .collect();
        for (n, slot) in slots.iter().enumerate() {
            assert_eq!(slot.get(), None, "{n}");
            slot.put(&program(n as u8));
        }
        for (n, slot) in slots.iter().enumerate() {
            assert_eq!(slot.get(), Some(program(n as u8)), "{n}");
        }
    }

    #[test]
    fn what_is_damaged_is_nothing() {
        let root = tempfile::tempdir().unwrap();
        let slot = slot(root.path(), 0);
        slot.put(&program(7));
        let path = slot.dir.join(&slot.name);
        let good = fs::read(&path).unwrap();
        let mut long = good.clone();
        long.resize(MAX_BYTES as usize + 8, 0);
        let mut damaged =
            vec![Vec::new(), good[..20].to_vec(), good[..36].to_vec(), good[..good.len() - 8].to_vec(), long];
        damaged.extend((0..good.len()).map(|at| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        }));
        for bytes in damaged {
            durable::replace_unsynced(&path, &bytes, 0o600).unwrap();
            assert_eq!(slot.get(), None, "{bytes:?}");
        }
        slot.put(&program(7));
        assert_eq!(slot.get(), Some(program(7)));
    }

    #[test]
    fn the_oldest_go() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..2 * ENTRIES {
            slot(root.path(), n).put(&program(n as u8));
            // Ages that a filesystem's clock tells apart.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for n in 0..2 * ENTRIES {
            let there = slot(root.path(), n).get();
            assert_eq!(there, (n >= ENTRIES).then(|| program(n as u8)), "{n}");
        }
        assert_eq!(fs::read_dir(root.path().join(DIRECTORY)).unwrap().count(), ENTRIES);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_kept() {
        let root = tempfile::tempdir().unwrap();
        durable::publish(&root.path().join(DIRECTORY), b"in its place", 0o600).unwrap();
        let slot = slot(root.path(), 0);
        slot.put(&program(1));
        assert_eq!(slot.get(), None);
    }

    /// A create waited without end for somebody to write to a pipe, and took whatever filter another user had put there.
    #[test]
    fn what_is_not_our_own_file_is_nothing() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let root = tempfile::tempdir().unwrap();
        let slot = slot(root.path(), 0);
        slot.put(&program(7));
        let (path, kept) = (slot.dir.join(&slot.name), root.path().join("kept"));
        durable::rename(&path, &kept).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(slot.get(), None, "a pipe");
        slot.put(&program(7));
        assert_eq!(slot.get(), Some(program(7)), "the pipe is replaced");
        durable::remove_file(&path).unwrap();
        symlink(&kept, &path).unwrap();
        assert_eq!(slot.get(), None, "a link");
        durable::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        slot.put(&program(7));
        assert_eq!(slot.get(), None, "a directory");
        fs::remove_dir(&path).unwrap();
        durable::rename(&kept, &path).unwrap();
        assert_eq!(slot.get(), Some(program(7)));
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (changed, open, closed) in [(&path, 0o620, 0o600), (&slot.dir, 0o1777, 0o700)] {
            mode(changed, open);
            assert_eq!(slot.get(), None, "{open:o}");
            mode(changed, closed);
            assert_eq!(slot.get(), Some(program(7)));
        }
        if rustix::process::geteuid().is_root() {
            chown(&slot.dir, Some(12_345), None).unwrap();
            assert_eq!(slot.get(), None, "another user's");
            durable::remove_file(&path).unwrap();
            slot.put(&program(7));
            assert!(!path.exists(), "nothing is written to another user's directory");
        }
        let linked = tempfile::tempdir().unwrap();
        let there = Slot { dir: linked.path().join(DIRECTORY), name: slot.name.clone() };
        fs::create_dir(linked.path().join("else")).unwrap();
        symlink("else", &there.dir).unwrap();
        there.put(&program(7));
        assert_eq!(fs::read_dir(linked.path().join("else")).unwrap().count(), 0, "a link to elsewhere");
    }

    /// Where directories had come among the programs nothing was kept any more.
    #[test]
    fn what_is_no_program_takes_no_room() {
        let root = tempfile::tempdir().unwrap();
        let slot = slot(root.path(), 0);
        for n in 0..=ENTRIES {
            fs::create_dir_all(slot.dir.join(format!("d{n}"))).unwrap();
        }
        fs::set_permissions(&slot.dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        slot.put(&program(1));
        assert_eq!(slot.get(), Some(program(1)));
    }

    #[test]
    fn no_container_has_its_name() {
        assert!(DIRECTORY.parse::<crate::id::ContainerId>().is_err());
    }
}
