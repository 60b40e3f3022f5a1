# Loads the module, has two tasks on two CPUs take and empty at once so many times, and prints how often what was taken was lost.
work() {
	while read -r go; do
		echo > /proc/window/$1
		echo > $2
	done
}
insmod ./window.ko
at=$(mktemp -d)
mkfifo $at/take $at/empty $at/done
exec 4<> $at/take 5<> $at/empty 6<> $at/done
(taskset -p 1 $(exec sh -c 'echo $PPID') > /dev/null; work take $at/done <&4) &
(taskset -p 2 $(exec sh -c 'echo $PPID') > /dev/null; work empty $at/done <&5) &
i=0
while [ $i -lt ${1:-200} ]; do
	echo > /proc/window/fill
	echo >&4
	echo >&5
	read -r done <&6
	read -r done <&6
	i=$((i + 1))
done
kill $!
cat /proc/window/lost
