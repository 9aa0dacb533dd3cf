// Package conf turns the configuration file, the environment and the command
// line into one validated Config.
//
// Later sources win: built-in defaults, then the YAML file, then SMSS_*
// variables, then flags. Nothing is ignored in silence: an unknown key, a key
// given twice, a value of the wrong type or out of range is a Problem, and Load
// returns all problems of all sources in one *Error, so that an operator mends a
// configuration in one go.
//
// One declarative table (table.go, table_limits.go) holds each setting's key,
// default, unit, range and meaning. Parsing, validation, the names of the
// environment variables, the help text and the reference for the README all read
// that table; a setting is added in one place.
//
// The package keeps no state: a Config is a plain value owned by its caller.
package conf
