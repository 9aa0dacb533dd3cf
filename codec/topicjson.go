package codec

// TopicJSON is a topic as the JSON of replies shows it.
type TopicJSON struct {
	Name               string `json:"name"`
	CreateTimeStamp    int64  `json:"createTimeStamp"` // Unix ms, as all times here
	ExpireAt           int64  `json:"expireAt"`        // 0 = never
	CreateEventID      int64  `json:"createEventId"`
	StateChangeTime    int64  `json:"stateChangeTime"`
	StateChangeEventID int64  `json:"stateChangeEventId"`
	State              int    `json:"state"` // other than 0: deleted
	TopicRoot          string `json:"topicRoot"`
}
