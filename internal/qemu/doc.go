// Package qemu gives tests a Linux of their own to talk to: a small virtual machine with Debian's
// kernel, its rdma_rxe driver and the stock tools, on a network interface of ours.
//
//	host namespace          lab's namespace A                    guest
//	┌─────────────┐   ┌───────────────────────────┐   ┌───────────────────────────┐
//	│ test ───────┼───┼──── virtio-serial ────────┼──▶│ agent: runs commands      │
//	│             │   │ tap0  10.77.0.1 fd77::1 ══╪═══│ eth0  10.77.0.2 fd77::2   │
//	└─────────────┘   └───────────────────────────┘   │ rxe0                      │
//	                                                  └───────────────────────────┘
//
// [Build] makes the guest's kernel and root file system from Debian packages, which are downloaded
// by name and unpacked, never installed; the result is kept in the user's cache directory. [Start]
// boots it, which takes some seconds: there is no KVM where it is needed most, so that the machine
// is emulated. [Guest.Command] runs programs in it as os/exec does here.
//
// Nothing of a guest outlives the process that started it: QEMU dies with it, the tap with QEMU,
// and the agent switches the machine off when its channel ends. What stays is a lab that the
// process could not take down because it was killed; the next one does.
package qemu
