#!/bin/bash
# A virtual machine with Debian's kernel, for features that this machine's kernel may lack: a real verbs device (rdma_rxe over
# veth) for the fabric checks and the RDMA self-test, and control groups of version 2 for jobs that run out of memory under
# Slurm. `run.sh PROGRAMS SELFTEST PLANTED`, with the folder of the built programs and the self-test built without and with
# `--features plant,small`, prints one line for each check and exits with 0 if all have the expected result. The kernel is kept in
# /var/cache/railgate/vm. RAILGATE_VM names the parts that run (default: `verbs,pair,memory`; `preflight` takes seven minutes more,
# `noise` measures for half an hour).
set -euo pipefail

[[ $# == 3 ]] || { echo "usage: run.sh PROGRAMS SELFTEST PLANTED" >&2; exit 2; }
built=$(realpath "$1")
selftest=$(realpath "$2")
planted=$(realpath "$3")
here=$(dirname "$(realpath "$0")")
cache=/var/cache/railgate/vm
work=$(mktemp -d)
trap 'rm -rf "$work" "$cache/programs"' EXIT

kernel() {
    [[ -e $cache/ready ]] && return
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
    mkdir -p "$cache/new"
    chmod 755 "$cache" "$cache/new"
    (cd "$cache/new" && apt-get -qq download "$package" && dpkg-deb -x ./*.deb . && rm ./*.deb)
    depmod -b "$cache/new" "$(basename "$cache"/new/lib/modules/*)"
    mv "$cache"/new/* "$cache"
    touch "$cache/ready"
}

# Makes the initramfs: busybox, the modules needed to mount the host's root, and the first program.
initramfs() {
    local root=$work/root release module file
    release=$(basename "$cache"/lib/modules/*)
    mkdir -p "$root"/{bin,proc,sys,dev,host,modules,rw,new}
    cp "$(command -v busybox)" "$root/bin/busybox"
    cp "$here/init.sh" "$root/init"
    chmod 755 "$root/init"
    for module in virtio_pci 9p 9pnet_virtio overlay; do
        modprobe -d "$cache" -S "$release" --show-depends "$module"
    done | sed -n 's/^insmod //p' | while read -r file _; do
        grep -qxF "$(basename "$file")" "$root/modules/order" 2>/dev/null && continue
        cp "$file" "$root/modules/"
        basename "$file" >>"$root/modules/order"
    done
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
}

# Copies the programs to a directory that the machine sees: a checkout may be in /tmp, which the machine replaces. They are
# stripped, since symbols are most of a program and every byte goes through 9p.
programs() {
    local name
    mkdir -p "$cache/programs"
    cp "$here"/{inside,verbs,pair,nodes,preflight,noise,memory}.sh "$cache/programs/"
    for name in railgate railgate-{prolog,epilog,epilog-ctld}; do
        strip -o "$cache/programs/$name" "$built/$name"
    done
    strip -o "$cache/programs/selftest" "$selftest"
    strip -o "$cache/programs/selftest-planted" "$planted"
}

kernel
initramfs
programs
timeout 1800 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot -nodefaults \
    -serial stdio -net none \
    -kernel "$cache"/boot/vmlinuz-* -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=-1 programs=$cache/programs here=$cache/programs cache=$cache parts=${RAILGATE_VM:-verbs,pair,memory}" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host </dev/null >"$work/console" 2>&1 || true
tr -d '\r' <"$work/console" | grep -E '^(ok|bad|why): ' || true
if ! tr -d '\r' <"$work/console" | grep -qx 'ok: all'; then
    echo "the virtual machine did not finish; its last output:" >&2
    tail -25 "$work/console" >&2
    exit 1
fi
