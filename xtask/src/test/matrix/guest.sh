#!/bin/busybox sh
# The first process of a guest: starts an engine, the agent and a router as people do, and looks at what the kernel
# counts. Prints `@@ ok CHECK` or `@@ FAILED CHECK: why` for each check and `@@ end` at last, which console.rs reads.
# An emulated machine is slow, so whatever is wanted is waited for.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /tmp
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
# Who connects to this address connects from it.
ip addr add 192.0.2.9/32 dev lo

ENGINE=127.0.0.1:8000
ROUTER=127.0.0.1:8001
failed=
set -f

# The words of a text, on one line.
flat() { echo $1; }
# check NAME WANTED COMMAND...: until the command prints what is wanted, for a minute; once one has failed, less.
check() {
    name=$1 wanted=$2
    shift 2
    end=$(($(cut -d. -f1 /proc/uptime) + ${failed:-60}))
    while seen=$(flat "$("$@" 2>&1)"); [ "$seen" != "$wanted" ]; do
        if [ "$(cut -d. -f1 /proc/uptime)" -ge $end ]; then
            echo "@@ FAILED $name: '$seen', not '$wanted'"
            failed=5
            return
        fi
        sleep 0.2
    done
    echo "@@ ok $name"
}

router() {
    unlatch serve --listen 0.0.0.0:8001 --backend http://$ENGINE --edge-dev lo >>/tmp/router 2>&1 &
    router=$!
}
ask() { wget -q -O - --header 'content-type: application/json' --post-data "$1" http://$ROUTER/v1/completions; }
# A request that goes on until its client is gone.
hold() {
    wget -q -O /dev/null --header 'content-type: application/json' \
        --post-data '{"model":"sim","prompt":"long","stream":true,"max_tokens":100000}' \
        http://$ROUTER/v1/completions 2>/dev/null &
}
answered() { ask '{"model":"sim","prompt":"short","max_tokens":1}' | grep -c choices; }
# Those of the router, the agent and the edge guard that are not attached.
lacking() {
    unlatch bpf status >/tmp/status
    for program in release inflight_sockops phase_ingress phase_egress \
        local_release local_sockops local_ingress local_egress edge_guard; do
        grep -q "^program  *$program " /tmp/status || echo "no $program"
    done
}
attached() { unlatch bpf status | grep ^program; }
# Columns of the engine's row: 3 in flight, 4 awaiting, 5 streaming, 6 connections, 7 opened.
row() { unlatch status | awk -v "columns=$1" '$2 ~ /^http/ { n = split(columns, c); for (i = 1; i <= n; i++) print $c[i] }'; }
routers() { unlatch status | awk '$1 == "routers" { print $2 }'; }
killed() { routers; row "3 4 5 6"; }
at_engine() { wget -q -O - http://127.0.0.1:8003/metrics | awk -F '[} ]+' '/^unlatch_local_(in_flight|awaiting|streaming)/ { print +$NF }'; }
ended() { row "3 4 5 6"; at_engine; }
edge() {
    nc -w 1 192.0.2.9 8001 </dev/null 2>/dev/null && echo "a denied source connected"
    unlatch edge list | awk '$1 == "device" { print $2, $3 } $2 == "denied" && $3 > 0 { print "dropped" }'
}
reopened() {
    attached >/tmp/attached.now
    cmp /tmp/attached /tmp/attached.now && row 7
}
detached() {
    unlatch bpf detach >/dev/null
    ls /sys/fs/bpf
}

late() {
    unlatch serve --listen 0.0.0.0:8001 --backend http://$ENGINE "$@" >/tmp/late 2>&1 &
    router=$!
}
# The kernel takes a program off a little after its link went.
unseen() {
    before=$(row 7)
    nc 127.0.0.1 8000 </dev/null
    [ "$(row 7)" = "$before" ] && echo yes
}
by_sockets() { grep -o 'agree with the sockets\|start from zero.*' /tmp/late; }
devices() { attached | awk '{ print $2 }' | sort; grep -c 'has no tcx links' /tmp/late; }

# Slow, so that an answer does not end by itself; the first request gets none.
unlatch engine --listen $ENGINE --time-scale 0.05 --fault hang,next=1 >/tmp/engine 2>&1 &
unlatch agent --port 8000 >/tmp/agent 2>&1 &
agent=$!
# At once, as at the boot of a host: one must wait for the other's programs to be verified.
router
check agent "listening on http://127.0.0.1:8003" cat /tmp/agent
check serves ok wget -q -O - http://127.0.0.1:8002/healthz
check programs "" lacking
grep "is not attached" /tmp/router | sed 's/.*reason=/@@ left out /'
unlatch edge deny 192.0.2.9
check edge "lo (generic) dropped" edge

hold
check awaiting "1 1 0" row "3 4 5"
hold
check requests "2 2 2" row "3 6 7"
check phases "1 1" row "4 5"
check engine-host "2 1 1" at_engine

attached >/tmp/attached
kill -KILL $router
check killed "none 0 0 0 0" killed
router
check reopened 2 reopened
check answered 1 answered
hold
check streams "1 0 1 1" row "3 4 5 6"
kill $!
check ended "0 0 0 0 0 0 0" ended

kill $router $agent
check detached "" detached

# What ends while no program is attached, and while no router is told of it.
late
check again 1 answered
hold
check held "1 0 1 1" row "3 4 5 6"
find /sys/fs/bpf/unlatch/v1/links -type f -exec rm {} +
check unseen yes unseen
kill -KILL $router
wait $router
check left "1 - - 1" row "3 4 5 6"
late
check put-right "0 0 0 0" row "3 4 5 6"
check by-sockets "agree with the sockets" by_sockets
kill $router
check detached-again "" detached

# What a kernel lacks is left out with one line.
case $(uname -r) in
    5.* | 6.[0-5].*) devices=1 ;;
    *) devices="tcx_egress tcx_ingress 0" ;;
esac
late --kernel-hook tcx --kernel-dev lo
check answered-at-devices 1 answered
check devices "$devices" devices
kill $router
check detached-at-last "" detached

if [ -n "$failed" ]; then
    tail -n 20 /tmp/engine /tmp/agent /tmp/router /tmp/late
    dmesg | tail -n 20
fi
echo "@@ end"
poweroff -f
