//! Docker with `userns-remap`: each container has a user namespace of its own.

use std::fs;

use serde_json::Value;

use crate::support::engines::{Engines, remapping_engines};
use crate::support::images::BUSYBOX;
use crate::support::{Output, result};

struct Container {
    engines: &'static Engines,
    id: String,
}

impl Container {
    #[track_caller]
    fn idle(engines: &'static Engines, options: &[&str]) -> Container {
        let run = engines.docker(["run", "--detach", "--network", "none"]).args(options);
        let id = run.args([BUSYBOX, "sleep", "100000"]).ok();
        Container { engines, id }
    }

    fn sh(&self, script: &str) -> Output {
        self.engines.docker(["exec", &self.id, "sh", "-c", script]).run()
    }

    #[track_caller]
    fn show(&self) -> Value {
        self.engines.json(["show", &self.id])
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.engines.docker(["rm", "--force", &self.id]).run();
    }
}

/// Execs are in the container's user namespace and have layers; owners are told as the container sees them; what a volume
/// gets is the mapped user's; going back and forth, conflicts and `docker cp` are as without it.
#[test]
fn remapped_containers_have_layers_and_history() {
    let engines = remapping_engines();
    let volume = fs::canonicalize(engines.store.parent().unwrap()).unwrap().join("volume");
    fs::create_dir_all(&volume).unwrap();
    std::os::unix::fs::chown(&volume, Some(300_000), Some(300_000)).unwrap();
    let bind = format!("{}:/volume", volume.display());
    let container = Container::idle(engines, &["-v", &bind]);
    let map = container.sh("cat /proc/self/uid_map").ok();
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "300000", "65536"]);

    container.sh("echo one > /root/f; chown 7:8 /root/f; echo v > /volume/v; id -u").expect(0);
    let shown = container.show();
    assert_eq!(shown["disposition"], "committed", "{shown}");
    let file = &shown["changes"][0];
    assert_eq!((&file["path"], &file["uid"], &file["gid"]), (&"/root/f".into(), &7.into(), &8.into()), "{shown}");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(volume.join("v")).unwrap());
    assert_eq!(owner, 300_000);

    let mut tries = Vec::new();
    for text in ["two", "three"] {
        let script = format!("echo {text} > /root/f; sleep 1");
        let exec = engines.docker(["exec", &container.id, "sh", "-c", &script]);
        tries.push(std::thread::spawn(move || exec.run()));
    }
    tries.into_iter().for_each(|exec| drop(exec.join().unwrap().expect(0)));
    let results = engines.results("moby", &container.id);
    let dispositions: Vec<&str> = results.iter().map(|r| r["disposition"].as_str().unwrap()).collect();
    assert!(dispositions.contains(&"conflict"), "{dispositions:?}");
    assert_eq!(results.iter().map(|r| result::end(r).0).collect::<Vec<_>>(), ["exited"; 3]);

    engines.agentsbx(["rollback", &container.id, "0"]).ok();
    assert_eq!(container.sh("ls /root; cat /volume/v").ok(), "v");
    engines.agentsbx(["rollback", &container.id, "1"]).ok();
    assert_eq!(container.sh("stat -c '%u %g' /root/f; cat /root/f").ok(), "7 8\none");
    let refused = container.sh("mknod /dev/sda b 8 0; mount -t tmpfs none /mnt");
    assert!(
        refused.code != 0
            && ["mknod: /dev/sda: ", "mount: permission denied"].iter().all(|w| refused.stderr.contains(w)),
        "{}",
        refused.stderr
    );
}
