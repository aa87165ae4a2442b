// Package ramdisk is an SRP target: a disk in memory, which initiators reach by RDMA-CM. It is
// there to try initiators on, and has switches for what a real target does only now and then: long
// thinking, so that a command can be aborted, unit attentions, credit requests, wrong data.
//
//	t, err := ramdisk.New(dev, m, ramdisk.Config{})
//	go t.Serve(ctx)
//
// It knows logical unit 0 with INQUIRY, READ CAPACITY (16), READ and WRITE of 10 and 16 bytes, TEST
// UNIT READY, and ABORT TASK.
package ramdisk
