//! The edge guard as people run it: `serve --edge-dev` and the commands beside it.

use std::net::SocketAddr;

use crate::edge::{GUARDED, at, is_attached, tries, wait_detached};
use crate::hosts::{DEVICE, ROUTER, connect_hosts, ip};
use crate::router_process::is_built;
use crate::sandbox::{Sandbox, name, run};
use crate::serving::{Serving, unlatch, unlatch_ok};

/// A router that guards its port on a device.
fn serve(sandbox: &Sandbox, listen: &str, device: &str) -> Serving {
    let listen = SocketAddr::new(listen.parse().unwrap(), GUARDED);
    Serving::start(sandbox, listen, &["--kernel=off", &format!("--edge-dev={device}")])
}

#[test]
fn the_commands_change_what_a_running_router_lets_in() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let router = serve(sandbox, ROUTER[0], DEVICE);
        let gets_in = |client: &str| tries(&clients, client, GUARDED);
        assert!(gets_in("10.9.0.2") && gets_in("10.9.1.2"));

        let said = unlatch_ok(sandbox, "edge deny 10.9.0.2 10.9.1.0/24 2001:db8::/32");
        assert_eq!(said, "10.9.0.2/32 denied\n10.9.1.0/24 denied\n2001:db8::/32 denied\n");
        assert!(!gets_in("10.9.0.2") && !gets_in("10.9.1.2") && gets_in("10.9.0.3"));
        assert_eq!(unlatch_ok(sandbox, "edge allow 10.9.1.2"), "10.9.1.2/32 allowed\n");
        assert!(gets_in("10.9.1.2") && !gets_in("10.9.1.3"));
        let said = unlatch_ok(sandbox, "edge deny --remove 10.9.0.2 10.9.0.3");
        assert_eq!(said, "10.9.0.2/32 no longer denied\n10.9.0.3/32 was not denied\n");
        assert!(gets_in("10.9.0.2"));

        let default = "100 connections per second and source, 200 at once\n";
        assert_eq!(unlatch_ok(sandbox, "edge limits"), default);
        let said = unlatch_ok(sandbox, "edge limits --rate 1 --burst 2");
        assert_eq!(said, "1 connections per second and source, 2 at once\n");
        let limited = clients.connect("10.9.0.3", at("10.9.0.3", GUARDED), 8).len();
        // A third if the machine takes a second over it.
        assert!((2..=3).contains(&limited), "{limited} of 8");
        assert_eq!(unlatch_ok(sandbox, "edge limits --rate 0"), "not limited\n");

        let listed: serde_json::Value =
            serde_json::from_str(&unlatch_ok(sandbox, "edge list --json")).unwrap();
        assert_eq!(
            (&listed["devices"][0]["device"], &listed["devices"][0]["mode"]),
            (&DEVICE.into(), &"native".into())
        );
        let port = serde_json::json!([{"port": GUARDED, "pid": router.pid(), "alive": true}]);
        assert_eq!(listed["ports"], port);
        let rule = serde_json::json!({"prefix": "10.9.1.0/24", "rule": "denied", "configured": false});
        assert!(listed["rules"].as_array().unwrap().contains(&rule), "{listed}");
        let verdicts = ["denied", "limited", "trusted"].map(|v| listed["packets"][v].as_u64().unwrap() > 0);
        assert_eq!(verdicts, [true; 3], "{listed}");
        let text = unlatch_ok(sandbox, "edge list");
        for line in [format!("device    {DEVICE} (native)"), "denied    10.9.1.0/24".into()] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in {text}");
        }
        router.stop();
        wait_detached();
    });
}

#[test]
fn detaching_takes_the_guard_off_a_running_router_only_by_force() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let router = serve(sandbox, ROUTER[0], DEVICE);
        unlatch_ok(sandbox, "edge deny 10.9.0.2");
        let refused = unlatch(sandbox, "bpf detach");
        assert_eq!(refused.code, Some(69), "{}", refused.text);
        assert!(
            refused.complaint.contains(&format!("routers are running (pid {})", router.pid())),
            "{}",
            refused.complaint
        );
        assert!(is_attached(DEVICE) && !tries(&clients, "10.9.0.2", GUARDED));

        let text = unlatch_ok(sandbox, "bpf detach --force");
        assert!(text.contains(&format!("detached edge_guard on device {DEVICE} (native)")), "{text}");
        assert!(!is_attached(DEVICE), "it is off when the command ends");
        assert!(tries(&clients, "10.9.0.2", GUARDED), "the router serves on, unguarded");
        for command in ["edge deny 10.9.0.2", "edge allow 10.9.0.2", "edge list", "edge limits --rate 5"] {
            let refused = unlatch(sandbox, command);
            assert_eq!(refused.code, Some(69), "{command}");
            assert!(refused.complaint.contains("nothing is pinned"), "{}", refused.complaint);
        }
        router.stop();
        assert!(!sandbox.pin_dir().exists());
    });
}

#[test]
fn a_router_says_in_which_mode_its_device_is_guarded() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let _clients = connect_hosts().unwrap();
        let router = serve(sandbox, ROUTER[0], DEVICE);
        assert!(
            router.log().contains(r#"the edge guard is attached device="edge0" port=8001 mode="native""#),
            "{}",
            router.log()
        );
        assert!(ip(&["link", "show", "dev", DEVICE]).contains("prog/xdp"));
        router.stop();
        // The loopback has no driver that could run it.
        let router = serve(sandbox, "127.0.0.1", "lo");
        let log = router.log();
        let line = log.lines().find(|line| line.contains("the edge guard runs in generic mode"));
        assert!(line.is_some_and(|line| line.contains("WARN") && line.contains("reason=")), "{log}");
        assert!(ip(&["link", "show", "dev", "lo"]).contains("xdpgeneric"));
        router.stop();
    });
}

#[test]
fn a_killed_router_is_followed_at_once_or_taken_off() {
    if !is_built(name!()) {
        return;
    }
    run(name!(), |sandbox| {
        let clients = connect_hosts().unwrap();
        let mut router = serve(sandbox, ROUTER[0], DEVICE);
        unlatch_ok(sandbox, "edge deny 10.9.0.2");
        for _ in 0..3 {
            router.kill();
            assert!(is_attached(DEVICE), "no packet passes unguarded meanwhile");
            router = serve(sandbox, ROUTER[0], DEVICE);
            assert!(router.log().contains(r#"mode="native""#), "{}", router.log());
            assert!(!tries(&clients, "10.9.0.2", GUARDED));
        }
        router.kill();
        // Not by force: it is dead, although its pid is still there.
        unlatch_ok(sandbox, "bpf detach");
        assert!(!is_attached(DEVICE));
        assert!(std::path::Path::new(&format!("/proc/{}", router.pid())).exists());
        assert!(!sandbox.pin_dir().exists());
    });
}
