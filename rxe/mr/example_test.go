package mr_test

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

// The protection domain and the QP of the examples' packets.
const (
	examplePD  = 1
	exampleQPN = 0x11
)

// The life of a region that an application registers: what happens below ibv_reg_mr and
// ibv_dereg_mr. In between a packet of a peer is checked.
func Example() {
	grace := mr.NewGrace(1) // a device with one shard
	table := mr.New(1024, 1, grace)
	memory := make([]byte, 4096)

	key := must(table.Alloc(mr.KindUser, examplePD))
	check(table.Publish(must(mr.NewView(mr.Region{
		Key: key, PD: examplePD, Access: mr.LocalWrite | mr.RemoteWrite,
		IOVA: 0x10000, Length: 4096, List: mr.NewList(memory),
	}))))

	grace.Enter(0) // shard 0 goes to work
	view, f := table.Check(key, examplePD, exampleQPN, mr.RemoteWrite, 0x10010, 5)
	fmt.Println("WRITE: fault", f)
	view.List().CopyIn(view.Offset(0x10010), []byte("hello"))
	for _, try := range []struct {
		what string
		key  mr.Key
		pd   mr.PD
		need mr.Access
		va   uint64
	}{
		{"READ", key, examplePD, mr.RemoteRead, 0x10010},
		{"WRITE beyond the end", key, examplePD, mr.RemoteWrite, 0x10ffe},
		{"WRITE by the key's next variant", key.Inc(), examplePD, mr.RemoteWrite, 0x10010},
		{"WRITE from another domain", key, 2, mr.RemoteWrite, 0x10010},
	} {
		_, f := table.Check(try.key, try.pd, exampleQPN, try.need, try.va, 5)
		fmt.Printf("%s: fault %v\n", try.what, f)
	}

	// From here on no packet finds the region. But the shard may be in the middle of one that has:
	// the memory is the application's again when each shard has passed a quiescent point.
	_, f = table.Unpublish(key.Index())
	fmt.Println("end: fault", f)
	epoch := grace.Start()
	fmt.Println("may the memory be used again?", grace.Passed(epoch))
	grace.Quiesce(0)
	fmt.Println("and now?", grace.Passed(epoch))
	check(table.Free(key.Index()))
	grace.Leave(0)
	fmt.Printf("%s\n", memory[0x10:0x15])
	// Output:
	// WRITE: fault none
	// READ: fault access
	// WRITE beyond the end: fault range
	// WRITE by the key's next variant: fault key-variant
	// WRITE from another domain: fault pd
	// end: fault none
	// may the memory be used again? false
	// and now? true
	// hello
}

// A fast-register region: memory is mapped, a REG_MR makes it reachable, an invalidation ends that,
// all in the order of a send queue.
func ExampleTable_Register() {
	table := mr.New(1024, 1, nil) // no shard: nothing has to wait
	key := must(table.AllocFast(examplePD, 8))
	a, b := []byte("scattered "), []byte("memory")
	length := must(table.Map(key.Index(), [][]byte{a, b}))

	// Posting the REG_MR captures the list; what is mapped afterwards is the next one's affair.
	key = key.Inc()
	staged := must(table.Stage(mr.Region{Key: key, Access: mr.RemoteRead, IOVA: 0, Length: length}))

	reach := func() mr.Fault {
		view, f := table.Check(key, examplePD, exampleQPN, mr.RemoteRead, 6, 6)
		if f == mr.FaultNone {
			read := make([]byte, 6)
			view.List().CopyOut(view.Offset(6), read)
			fmt.Printf("read %q\n", read)
		}
		return f
	}
	fmt.Println("posted: fault", reach())
	fmt.Println("execute: fault", table.Register(table.Staged(key.Index(), staged), examplePD))
	reach()
	_, f := table.Invalidate(key, examplePD, exampleQPN)
	fmt.Println("invalidate: fault", f)
	fmt.Println("then: fault", reach())
	// Output:
	// posted: fault key-variant
	// execute: fault none
	// read "red me"
	// invalidate: fault none
	// then: fault state
}

// A type 2 window lends a part of a region to one QP.
func ExampleTable_Bind2() {
	table := mr.New(1024, 1, nil)
	region := must(table.Alloc(mr.KindUser, examplePD))
	check(table.Publish(must(mr.NewView(mr.Region{
		Key: region, PD: examplePD, Access: mr.LocalWrite | mr.MWBind,
		IOVA: 0x10000, Length: 4096, List: mr.NewList(make([]byte, 4096)),
	}))))
	window := must(table.Alloc(mr.KindWindow2, examplePD))

	bind := &mr.Bind{Window: window, Key: window.Inc(), Parent: region,
		Access: mr.RemoteWrite, Addr: 0x10100, Length: 256}
	num := must(table.StageBind(window.Index()))
	fmt.Println("bind: fault", table.Bind2(num, bind, examplePD, exampleQPN))

	_, f := table.Check(bind.Key, examplePD, exampleQPN, mr.RemoteWrite, 0x10100, 256)
	fmt.Println("WRITE through it: fault", f)
	_, f = table.Check(bind.Key, examplePD, exampleQPN+1, mr.RemoteWrite, 0x10100, 256)
	fmt.Println("WRITE of another QP: fault", f)
	_, f = table.Check(bind.Key, examplePD, exampleQPN, mr.RemoteWrite, 0x10000, 256)
	fmt.Println("WRITE in front of it: fault", f)
	_, f = table.Unpublish(region.Index())
	fmt.Println("end of the region: fault", f)
	// Output:
	// bind: fault none
	// WRITE through it: fault none
	// WRITE of another QP: fault qp
	// WRITE in front of it: fault range
	// end of the region: fault bound
}

// A list is the memory behind a region: scattered pieces, one row of offsets.
func ExampleList() {
	counter := make([]byte, 8)
	list := mr.NewList([]byte("head"), counter)
	fmt.Println(list.NumSegs(), "segments,", list.Len(), "bytes")

	list.CopyIn(2, []byte("re"))
	text := make([]byte, 4)
	list.CopyOut(0, text)
	fmt.Printf("%s\n", text)

	for range 3 {
		list.FetchAdd(4, 14)
	}
	old, ok := list.CmpSwap(4, 42, 7)
	fmt.Println(old, ok)
	_, ok = list.FetchAdd(5, 1) // its last byte is not in the list
	fmt.Println(ok)
	// Output:
	// 2 segments, 12 bytes
	// here
	// 42 true
	// false
}

// A goroutine of the control path sleeps until both shards have forgotten what was unpublished.
func ExampleGrace() {
	grace := mr.NewGrace(3)
	const waiter = 5 // a number beyond the shards
	grace.Enter(0)
	grace.Enter(1) // shard 2 sleeps, and holds nothing

	epoch := grace.Start()
	fmt.Println("passed at once:", grace.Want(waiter, epoch))
	fmt.Println("shard 0 wakes:", grace.Quiesce(0)>>waiter)
	fmt.Println("shard 1 wakes:", grace.Leave(1)>>waiter)
	fmt.Println("passed:", grace.Passed(epoch))
	// Output:
	// passed at once: false
	// shard 0 wakes: 0
	// shard 1 wakes: 1
	// passed: true
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
