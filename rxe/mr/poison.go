//go:build !debug

package mr

// With the build tag debug, views and lists that go back to their pool are overwritten, so that
// a shard that still holds one finds nothing in it.

func poisonView(*View) {}
func poisonList(*List) {}
