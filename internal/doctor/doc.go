// Package doctor looks at a machine and a network interface with roxie's eyes: does each thing that
// roxie needs work, work slowly, or not at all, why, and which command mends it.
//
// It asks the kernel (internal/netdev, /proc, /sys) and tries what can be tried without disturbing
// anybody: it loads the steering program without attaching it, and binds a small AF_XDP socket to
// each queue for a moment, which no frame is steered to. Only Config.Try attaches the program,
// which lets many NICs lose their link for a second or two. Nothing of it remains.
//
// A thing that cannot be looked at because another is broken has no line: the other's is there.
package doctor
