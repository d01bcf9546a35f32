#!/bin/busybox sh
# shellcheck shell=dash
# The virtual machine's first program: mounts the host's root below an overlay in memory, then runs inside.sh.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev
while read -r module; do
    $bb insmod "/modules/$module"
done </modules/order
$bb mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
$bb mount -t tmpfs rw /rw
$bb mkdir /rw/up /rw/work
$bb mount -t overlay -o lowerdir=/host,upperdir=/rw/up,workdir=/rw/work overlay /new
for tree in proc sys dev; do
    $bb mount -o move "/$tree" "/new/$tree"
done
$bb mount -t tmpfs run /new/run
$bb mount -t tmpfs tmp /new/tmp
for word in $($bb cat /new/proc/cmdline); do
    case $word in
    programs=* | here=* | cache=* | parts=*) export "${word?}" ;;
    esac
done
# shellcheck disable=SC2154 # set by the kernel's command line
$bb chroot /new /bin/bash "$here/inside.sh" 2>&1
$bb poweroff -f
