// Package storage owns the data directory: the binlog, the topics' logs, the
// Badger metadata and the small files beside them. FORMAT.md has the byte
// tables and the crash argument.
//
// It knows files and keys and has no policy: which command is allowed, which
// id an event gets and when to sync are the engine's decisions. Notable
// moments leave through Events; nothing here logs.
//
// Who calls what:
//
//   - Open and Close: once, before and after everything else.
//   - Batch and what hangs on it, Topic, Log: the writer goroutine alone.
//   - Reader functions (ReadPush, Locate, DueDelays …): any goroutine. They see
//     a topic through the published end that the caller passes in, and never
//     look past it.
//   - Syncer functions (SyncTask.Run, Store.Checkpoint): one goroutine at a time.
//   - Retention and trash: the janitor goroutine.
//
// What it promises: a batch is on the files whole or not at all, as long as
// the process lives; after a crash Open makes binlog, topic logs and metadata
// agree again; nothing is handed to a reader whose checksum is wrong.
package storage
