# Starts a program so many times while its file system is made noexec.
at=$(mktemp -d)
busybox mount -t tmpfs none $at
cp /bin/busybox $at/busybox-that-races
i=0
while [ $i -lt ${1:-200} ]; do
	busybox mount -o remount,exec $at
	taskset 1 $at/busybox-that-races true &
	taskset 2 busybox mount -o remount,noexec $at
	wait
	i=$((i + 1))
done
