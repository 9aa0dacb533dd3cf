package bench

import "smss/codec"

// replyReader cuts a stream into replies. It allocates only for the text of
// an error reply.
type replyReader struct {
	header [codec.ReplyHeaderSize]byte
	have   int // bytes of header
	left   int // bytes of text still to come
	text   []byte
}

// next takes one reply from the start of b and returns what is behind it.
// Without ok all of b was taken and the reply goes on in the next bytes. After
// CodeError r.text is the error text, until the next call.
func (r *replyReader) next(b []byte) (code codec.Code, rest []byte, ok bool) {
	if r.left == 0 {
		var h codec.ReplyHeader
		if r.have == 0 && len(b) >= codec.ReplyHeaderSize {
			h, b = codec.ParseReplyHeader(b), b[codec.ReplyHeaderSize:]
		} else {
			n := copy(r.header[r.have:], b)
			r.have, b = r.have+n, b[n:]
			if r.have < codec.ReplyHeaderSize {
				return 0, nil, false
			}
			h, r.have = codec.ParseReplyHeader(r.header[:]), 0
		}
		if h.Code != codec.CodeError {
			return h.Code, b, true
		}
		r.left, r.text = h.TextSize, r.text[:0]
	}
	n := min(r.left, len(b))
	r.text, r.left = append(r.text, b[:n]...), r.left-n
	return codec.CodeError, b[n:], r.left == 0
}
