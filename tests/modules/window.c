// SPDX-License-Identifier: GPL-2.0
// A module whose window is known: who takes looks first whether there is something, and takes then. What was taken away in between
// is counted as lost.
//
//	/proc/window/fill	each write puts something there
//	/proc/window/take	each write takes it
//	/proc/window/empty	each write takes it away
//	/proc/window/lost	how often it was gone when it was taken

#include <linux/atomic.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

static int full;
static atomic_t lost = ATOMIC_INIT(0);
static struct proc_dir_entry *folder;

// The window is open from the first instruction here on.
static noinline void window_use(void)
{
	barrier();
	if (!READ_ONCE(full))
		atomic_inc(&lost);
	WRITE_ONCE(full, 0);
}

static noinline void window_take(void)
{
	if (READ_ONCE(full))
		window_use();
	barrier();
}

static noinline void window_empty(void)
{
	barrier();
	WRITE_ONCE(full, 0);
}

static ssize_t fill_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	WRITE_ONCE(full, 1);
	return length;
}

static ssize_t take_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	window_take();
	return length;
}

static ssize_t empty_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	window_empty();
	return length;
}

static const struct proc_ops fill_ops = { .proc_write = fill_write };
static const struct proc_ops take_ops = { .proc_write = take_write };
static const struct proc_ops empty_ops = { .proc_write = empty_write };

static int lost_show(struct seq_file *out, void *nothing)
{
	seq_printf(out, "%d\n", atomic_read(&lost));
	return 0;
}

static int __init window_init(void)
{
	folder = proc_mkdir("window", NULL);
	if (!folder || !proc_create("fill", 0200, folder, &fill_ops) || !proc_create("take", 0200, folder, &take_ops) ||
	    !proc_create("empty", 0200, folder, &empty_ops) || !proc_create_single("lost", 0400, folder, lost_show)) {
		proc_remove(folder);
		return -ENOMEM;
	}
	return 0;
}

static void __exit window_exit(void)
{
	proc_remove(folder);
}

module_init(window_init);
module_exit(window_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("a window between a check and what was checked");
