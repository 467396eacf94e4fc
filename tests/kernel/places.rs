//! E01 and E03 of the known failures of others: wherever cgroup2 is or is not, and whatever lies where the pins should.
#![expect(unsafe_code, reason = "unshare")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use router_tests::backend::Backend;
use router_tests::client::{Client, ask};
use router_tests::wait;
use router_user::account::{Detach, detach};

use crate::permissions::{refuses, serves_without_kernel};
use crate::program::{Serve, completion, holding_engine};
use crate::router_process::is_built;
use crate::sandbox::{Sandbox, name, run};
use crate::world::{ATTACHED, bpftool};

/// Runs a command.
fn sh(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where Linux puts its cgroups.
const USUAL: &str = "/sys/fs/cgroup";

/// Mounts a file system, only in this case's mount namespace.
fn mount(kind: &str, at: &str) {
    sh("mount", &["-t", kind, "none", at]);
}

fn unmount() {
    sh("umount", &["--lazy", USUAL]);
}

/// All programs are attached, and see the request of a client. Leaves nothing pinned.
#[track_caller]
fn counts(sandbox: &Sandbox, serve: Serve) {
    let router = serve.start();
    assert_eq!(router.metric("unlatch_kernel_attached"), Some(ATTACHED), "{:?}", router.said());
    let mut client = Client::connect(router.addr);
    client.send(completion("hold"));
    wait::until("the kernel's count", || router.metric("unlatch_backend_kernel_awaiting") == Some(1.0));
    assert_eq!(router.said(), Vec::<String>::new());
    drop(router);
    detach(&sandbox.pin_dir(), Detach::Forced).unwrap();
}

#[test]
fn e01_cgroup2_is_found_wherever_it_is() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let serve = || Serve::new(sandbox, "127.78.1.1", "on", &[&engine]);
        unmount();
        mount("cgroup2", USUAL);
        println!("version 2 alone");
        counts(sandbox, serve());
        let own = Path::new("/sys/fs/cgroup").join(sandbox.cgroup.file_name().unwrap());
        counts(sandbox, serve().arg(format!("--kernel-cgroup={}", own.display())));

        println!("read-only");
        sh("mount", &["-o", "remount,ro", USUAL]);
        counts(sandbox, serve());
        sh("mount", &["-o", "remount,rw", USUAL]);

        println!("beside version 1, at another place");
        unmount();
        mount("tmpfs", USUAL);
        fs::create_dir_all("/sys/fs/cgroup/with space/unified").unwrap();
        mount("cgroup2", "/sys/fs/cgroup/with space/unified");
        counts(sandbox, serve());

        println!("in a container with a cgroup namespace of its own");
        unmount();
        // SAFETY: affects the cgroups that this thread, and what it starts, sees.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }, 0);
        mount("cgroup2", USUAL);
        assert!(Path::new("/sys/fs/cgroup/cgroup.procs").exists());
        assert_eq!(fs::read_to_string("/proc/thread-self/cgroup").unwrap().lines().last(), Some("0::/"));
        counts(sandbox, serve());
        counts(sandbox, serve().arg("--kernel-cgroup=/sys/fs/cgroup"));
    });
}

#[test]
fn e01_without_a_usable_cgroup2_one_line_says_what_there_is() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let serve = |kernel: &str| Serve::new(sandbox, "127.78.1.2", kernel, &[&engine]);
        let dir = sandbox.bpffs.parent().unwrap();
        let file = dir.join("file");
        fs::write(&file, "").unwrap();
        unmount();
        mount("cgroup2", USUAL);
        let procs = "/sys/fs/cgroup/cgroup.procs";
        for (path, because) in [
            (sandbox.bpffs.to_str().unwrap(), "is on bpf: needs a directory of a cgroup2 file system"),
            (file.to_str().unwrap(), "needs a directory of a cgroup2 file system"),
            (procs, "is on cgroup2: needs a directory of a cgroup2 file system"),
            ("/sys/fs/cgroup/not-there", "cannot open cgroup"),
        ] {
            let because = [path, because];
            let chosen = |kernel: &str| serve(kernel).arg(format!("--kernel-cgroup={path}"));
            serves_without_kernel(&chosen("auto").start(), &because);
            refuses(chosen("on"), &because);
        }
        unmount();
        mount("tmpfs", USUAL);
        serves_without_kernel(&serve("auto").start(), &["no cgroup2 file system is mounted"]);
        refuses(serve("on"), &["no cgroup2 file system is mounted"]);
    });
}

/// Makes a map of a shape and pins it.
fn pin(at: &Path, shape: &str) {
    bpftool(&["map", "create"], at, &shape.split(' ').collect::<Vec<_>>());
}

/// What the kernel knows of a pinned map.
fn shown(at: &Path) -> serde_json::Value {
    serde_json::from_str(&bpftool(&["-j", "map", "show", "pinned"], at, &[])).unwrap()
}

/// In the way lies what another version or another program pinned.
fn with_in_the_way(sandbox: &Sandbox, engine: &Backend, name: &str) {
    let path = sandbox.pin_dir().join("v1").join(name);
    let because = [path.to_str().unwrap(), "another layout", "left alone"];
    serves_without_kernel(&Serve::new(sandbox, "127.78.3.1", "auto", &[engine]).start(), &because);
    refuses(Serve::new(sandbox, "127.78.3.1", "on", &[engine]), &because);
}

#[test]
fn e03_a_pinned_map_of_another_layout_is_left_alone_and_traffic_goes_on() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        let v1 = sandbox.pin_dir().join("v1");
        for (name, shape) in [
            ("LOAD", "type array key 4 value 400 entries 256 name LOAD flags 1024"),
            ("LOAD", "type array key 4 value 384 entries 128 name LOAD flags 1024"),
            ("LOAD", "type array key 4 value 384 entries 256 name LOAD"),
            ("LOAD", "type hash key 4 value 384 entries 256 name LOAD"),
            ("WORKERS", "type array key 4 value 40 entries 16 name WORKERS flags 1024"),
            ("NAMES", "type array key 4 value 240 entries 256 name NAMES flags 1024"),
            ("BACKENDS", "type hash key 16 value 4 entries 256 name BACKENDS"),
        ] {
            println!("{name}: {shape}");
            fs::create_dir_all(&v1).unwrap();
            pin(&v1.join(name), shape);
            let before = shown(&v1.join(name));
            with_in_the_way(sandbox, &engine, name);
            assert_eq!(shown(&v1.join(name)), before, "still as it was");
            fs::remove_dir_all(sandbox.pin_dir()).unwrap();
        }
        // A BPF file system holds no plain files: what comes next to one.
        let file = sandbox.bpffs.with_file_name("plain");
        fs::write(&file, "not ours").unwrap();
        fs::create_dir_all(&v1).unwrap();
        symlink(&file, v1.join("LOAD")).unwrap();
        with_in_the_way(sandbox, &engine, "LOAD");
        assert_eq!(fs::read_to_string(v1.join("LOAD")).unwrap(), "not ours");
        fs::remove_file(v1.join("LOAD")).unwrap();
        fs::create_dir(v1.join("LOAD")).unwrap();
        with_in_the_way(sandbox, &engine, "LOAD");
        assert!(v1.join("LOAD").is_dir());
    });
}

#[test]
fn e03_older_and_newer_versions_go_on_beside_each_other() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let engine = holding_engine();
        // The layout's version is in the path: neither an older nor a newer build looks here.
        let others = ["v0", "v2"].map(|version| sandbox.pin_dir().join(version));
        for other in &others {
            fs::create_dir_all(other).unwrap();
            pin(&other.join("LOAD"), "type array key 4 value 400 entries 256 name LOAD flags 1024");
        }
        let before = others.each_ref().map(|other| shown(&other.join("LOAD")));
        // A map of the right shape under another map's name is foreign, and in nobody's way.
        fs::create_dir_all(sandbox.pin_dir().join("v1")).unwrap();
        let foreign = sandbox.pin_dir().join("v1/FOREIGN");
        pin(&foreign, "type array key 4 value 384 entries 256 name LOAD flags 1024");
        for _again in 0..2 {
            counts(sandbox, Serve::new(sandbox, "127.78.3.2", "on", &[&engine]));
            assert_eq!(others.each_ref().map(|other| shown(&other.join("LOAD"))), before);
            assert!(foreign.exists(), "never another program's pin");
        }
        let router = Serve::new(sandbox, "127.78.3.2", "auto", &[&engine]).start();
        assert_eq!(ask(router.addr, completion("answer")).status, 200);
    });
}
