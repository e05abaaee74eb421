//! What is asked of the system itself: version control, databases, archives, packages, users, shells, debuggers.

use super::{Container, Who, Work};

#[test]
fn git_does_a_project_s_day() {
    Work::new(
        "git.sh",
        "on topic|commit 3|commit 2|commit 1|
         ## topic...origin/topic
         M renamed
         1 file changed, 0 insertions(+), 0 deletions(-)
         renamed
         dir1/ dir1/file dir2/ dir2/file dir3/ dir3/file renamed topic",
    )
    .makes(&["by-url/.git/packed-refs", "tree/topic", "bare.git/HEAD"])
    .works();
}

#[test]
fn sqlite_with_a_log_and_mapped_memory() {
    Work::new(
        "sqlite.sh",
        "wal
         268435456
         268435456
         1000|125500|4
         ok
         5
         fts [('honest work',)] (1000,)",
    )
    .makes(&["data.db", "copy.db"])
    .works();
}

#[test]
fn tar_packs_and_unpacks_every_kind_of_file() {
    Work::new(
        "tar.sh",
        "said: tar: tree/socket: socket ignored
         root: file regular file 644 1234:4321 2
         root: soft symbolic link 777 1:2 1
         root: pipe fifo 644 own 1
         root: a directory 2755 own 3
         root: old regular empty file 4755 own 1
         user: file regular file 644 own 2
         user: soft symbolic link 777 own 1
         user: pipe fifo 644 own 1
         user: a directory 2755 own 3
         user: old regular empty file 644 own 1
         /nowhere deep 10485761 1 1
         xattr b'value'
         same
         4",
    )
    .makes(&["all.tar.xz", "out/tree/pipe", "copied/soft"])
    .works();
}

#[test]
fn apt_installs_packages_with_scripts() {
    Work::new(
        "apt.sh",
        "no complaint
         Hello, world!
         36
         uuidd:/run/uuidd
         _agentsbx
         /var/log/agentsbx-daemon _agentsbx:adm 2750
         /var/lib/agentsbx-daemon _agentsbx:_agentsbx 755
         /usr/lib/agentsbx-daemon/daemon root:root 4755
         daemon runs as root
         Status: install ok installed
         Status: install ok installed
         Status: install ok installed
         purged",
    )
    .makes(&["/usr/bin/uuidgen", "/var/log/agentsbx-daemon"])
    .only(&[Who::Root])
    .works();
}

#[test]
fn users_are_made_and_become() {
    Work::new(
        "users.sh",
        "worker P
         uid=worker gid=worker groups=worker,users,crew
         worker:worker directory
         su worker /home/worker
         su - worker /home/worker
         runuser worker
         setpriv worker users crew
         worker reads no shadow
         sudo worker
         cannot change root directory to '/': Operation not permitted
         python (1000, 1000, 1000)
         worker:crew 640
         user:user 2640
         killed another's process
         gone",
    )
    .makes(&["/srv/owned"])
    .only(&[Who::Root])
    .works();
}

#[test]
fn shells_with_jobs_locks_and_pipes() {
    Work::new(
        "shell.sh",
        "[1]+ Running
         ended 143
         foreground 3
         stopped
         job 137
         through
         locked
         unlocked
         shared
         1
         timeout 124
         coproc to
         substituted
         100
         5
         affinity
         ionice
         Ä 1
         1 2 3 4 5 6 7 8 9
         /etc/pam.d/passwd
         /etc/passwd
         ps
         1
         1970
         ./tmp.
         2",
    )
    .makes(&["pipe", "lock"])
    .works();
}

#[test]
fn debuggers_on_children_of_their_own() {
    Work::new(
        "trace.sh",
        "1
         $1 = 42
         [Inferior 1 (process *) exited normally]",
    )
    .makes(&["strace.log"])
    .works();
}

/// What root may do, by what each capability is for: with those of the profile, and then without them, which shows that it
/// is they that let it.
#[test]
fn root_has_the_capabilities_that_its_work_needs() {
    const CHANGE_USER: [&str; 5] = ["CHOWN", "SETFCAP", "NET_BIND_SERVICE", "SETGID", "SETUID"];
    const OF_OTHERS: [&str; 4] = ["FSETID", "FOWNER", "DAC_OVERRIDE", "KILL"];
    const NEVER: [&str; 5] = ["MKNOD", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE"];
    let tried = |dropped: &[&str]| {
        let container = Container::running_with(&format!("capabilities.drop = {dropped:?}"));
        let output = container.exec(Who::Root, &["python3", "/srv/work/rights.py"]).args(dropped).run().expect(0);
        move |name: &str| {
            let line = output.stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} was not tried: {}", output.stdout)).to_owned()
        }
    };
    let all = tried(&[]);
    for name in CHANGE_USER.iter().chain(&OF_OTHERS) {
        assert_eq!(all(name), "works", "{name}");
    }
    for name in NEVER {
        assert_ne!(all(name), "works", "{name}");
    }
    for dropped in [&CHANGE_USER[..], &OF_OTHERS[..]] {
        let fewer = tried(dropped);
        for name in dropped {
            assert_ne!(fewer(name), "works", "{name}");
        }
    }
}
