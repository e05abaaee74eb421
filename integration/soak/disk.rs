//! A small disk of its own: a file, a loop device, a file system of any kind, mounted as long as this lives.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::env::{process, unique};
use crate::support::{Cmd, wait_until};

/// The disk.
pub struct Disk {
    /// Where it is mounted; mode 0700.
    pub dir: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// `mkfs` is a program and its options, the image's path comes last; `size` in MiB.
    pub fn new(mkfs: &[&str], size: u64, options: &str) -> Disk {
        let name = unique("disk");
        let (dir, image) = (process().data.join(&name), process().data.join(format!("{name}.img")));
        fs::create_dir_all(&dir).expect("make a mount point");
        fs::File::create(&image).and_then(|file| file.set_len(size << 20)).expect("make an image");
        Cmd::new(mkfs[0]).args(&mkfs[1..]).arg(&image).ok();
        Cmd::new("mount").args(["-o", &format!("loop,{options}")]).arg(&image).arg(&dir).ok();
        let disk = Disk { dir, image };
        Cmd::new("chmod").arg("0700").arg(&disk.dir).ok();
        disk
    }

    /// ext4, without what is reserved for root.
    pub fn ext4(size: u64) -> Disk {
        Disk::new(&["mkfs.ext4", "-q", "-m", "0"], size, "rw")
    }

    /// Mounts it again with other options: `ro`, `rw`.
    pub fn remount(&self, options: &str) {
        // A child that another test is just about to start has our descriptors for a moment.
        wait_until("a mount that is not busy", Duration::from_secs(5), || {
            Cmd::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.dir).run().code == 0
        });
    }

    /// Takes all but `left` KiB.
    pub fn fill(&self, left: u64) {
        let free = || Cmd::new("stat").args(["-f", "--format", "%a %S"]).arg(&self.dir).ok();
        let kib = |text: String| -> u64 {
            let (blocks, size) = text.split_once(' ').expect("two numbers");
            blocks.parse::<u64>().expect("a number") * size.parse::<u64>().expect("a number") / 1024
        };
        let size = kib(free()).saturating_sub(left);
        let fill = format!("head -c {size}K /dev/zero >>\"$1\"; true");
        Cmd::new("sh").args(["-c", &fill, "sh"]).arg(self.dir.join("filler")).ok();
    }

    /// Gives that back.
    pub fn drain(&self) {
        let _ = fs::remove_file(self.dir.join("filler"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Cmd::new("umount").arg(&self.dir).run();
        let _ = fs::remove_file(&self.image);
    }
}
