// Package test is the black-box suite of smss: it builds the real binary,
// starts it on temporary data directories and talks to it over TCP with a
// protocol client of its own, which shares no code with package codec and so
// is a second opinion on the bytes.
//
// What is here:
//
//   - golden transcripts recorded from the existing smss server
//     (testdata/golden), replayed whole, split at pseudo-random places and
//     one byte at a time;
//   - scenario tests named after the numbered cases from the field: bytes on
//     the wire, connections and load, delayed messages, subscribers, topics,
//     configuration and operation, crashes, full and failing disks, damaged
//     files;
//   - data directories written by the existing server (testdata/fixtures)
//     that must open here and carry on.
//
// The usual run:
//
//	go test ./test/
//	go test -race ./test/        (the server is then built with -race too)
//
// Environment:
//
//	SMSS_TEST_LONG=1             the same scenarios with the big numbers;
//	                             go test -timeout 60m ./test/
//	SMSS_TEST_BINARY=FILE        test this binary instead of building one
//	SMSS_TEST_PEER=1             that binary is the existing smss server: it
//	                             reads ./config/config.yaml of its working
//	                             directory, has no -config flag and no clean
//	                             stop. Meant for -run Golden, which proves the
//	                             replayer against the server that was recorded
//
// The suite uses the loopback interface, and for links that lose packets a
// network namespace that it makes, with addresses of 198.18.0.0/15, which is
// for tests of networks. Some tests read /proc and so need Linux. Full disks
// are small tmpfs mounts, for which the tests have to run as root, as for
// namespaces, which need ip and tc; system calls are made to fail by strace,
// which has to be installed. Where one is missing, its tests are skipped and
// say so.
package test
