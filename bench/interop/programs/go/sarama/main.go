// Sarama.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	. "mainstem.interop/scenario"
)

func main() {
	Run(map[string]Play{
		"round trip": roundTrip, "idempotent producer": idempotentProducer, "consumer group": consumerGroup,
		"delete records": deleteRecords, "transactions": transactions, "zombie fenced": zombieFenced,
	})
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	return config
}

func exactly(id string) *sarama.Config {
	settings := config()
	settings.Producer.Idempotent = true
	settings.Net.MaxOpenRequests = 1
	settings.Producer.Transaction.ID = id
	return settings
}

func committed() *sarama.Config {
	settings := config()
	settings.Consumer.IsolationLevel = sarama.ReadCommitted
	return settings
}

func topic(address string) (string, error) {
	admin, err := sarama.NewClusterAdmin([]string{address}, config())
	if err != nil {
		return "", err
	}
	defer admin.Close()
	name := NewName("topic")
	return name, admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)
}

func messages(topic string, values []string) []*sarama.ProducerMessage {
	var all []*sarama.ProducerMessage
	for _, value := range values {
		all = append(all, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	}
	return all
}

func send(address, topic string, count int, settings *sarama.Config) error {
	producer, err := sarama.NewSyncProducer([]string{address}, settings)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(messages(topic, Numbers(0, count)))
}

// readAll expects these values in partition 0, from its beginning.
func readAll(ctx context.Context, address, topic string, expected []string, settings *sarama.Config) error {
	ctx, cancel := context.WithTimeout(ctx, Max)
	defer cancel()
	consumer, err := sarama.NewConsumer([]string{address}, settings)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer partition.Close()
	var found []string
	for len(found) < len(expected) {
		select {
		case message := <-partition.Messages():
			found = append(found, string(message.Value))
		case failed := <-partition.Errors():
			return failed
		case <-ctx.Done():
			return fmt.Errorf("%d of %d messages", len(found), len(expected))
		}
	}
	return Same(found, expected, "messages")
}

func roundTrip(ctx context.Context, address string) error {
	for _, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4,
		sarama.CompressionZSTD,
	} {
		settings := config()
		settings.Producer.Compression = codec
		name, err := topic(address)
		if err == nil {
			err = send(address, name, 100, settings)
		}
		if err == nil {
			err = readAll(ctx, address, name, Numbers(0, 100), config())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func idempotentProducer(ctx context.Context, address string) error {
	name, err := topic(address)
	if err == nil {
		err = send(address, name, 1_000, exactly(""))
	}
	if err != nil {
		return err
	}
	return readAll(ctx, address, name, Numbers(0, 1_000), config())
}

// member takes so many messages, and commits behind them.
type member struct {
	left  int
	found []string
	done  context.CancelFunc
}

func (*member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m.left > 0 {
		select {
		case message := <-claim.Messages():
			m.found = append(m.found, string(message.Value))
			m.left--
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
	session.Commit()
	m.done()
	return nil
}

func consumerGroup(ctx context.Context, address string) error {
	name, err := topic(address)
	if err == nil {
		err = send(address, name, 10, config())
	}
	if err != nil {
		return err
	}
	id := NewName("group")
	settings := config()
	settings.Consumer.Offsets.AutoCommit.Enable = false
	for _, expected := range [][]string{Numbers(0, 4), Numbers(4, 10)} {
		group, err := sarama.NewConsumerGroup([]string{address}, id, settings)
		if err != nil {
			return err
		}
		within, done := context.WithTimeout(ctx, Max)
		one := &member{left: len(expected), done: done}
		for within.Err() == nil {
			if err := group.Consume(within, []string{name}, one); err != nil {
				done()
				return err
			}
		}
		group.Close()
		if err := Same(one.found, expected, "messages of one member"); err != nil {
			return err
		}
	}
	return nil
}

func deleteRecords(ctx context.Context, address string) error {
	name, err := topic(address)
	if err == nil {
		err = send(address, name, 20, config())
	}
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin([]string{address}, config())
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := admin.DeleteRecords(name, map[int32]int64{0: 15}); err != nil {
		return err
	}
	return readAll(ctx, address, name, Numbers(15, 20), config())
}

func transactions(ctx context.Context, address string) error {
	name, err := topic(address)
	if err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{address}, exactly(NewName("transaction")))
	if err != nil {
		return err
	}
	defer producer.Close()
	for number, value := range Numbers(0, 6) {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages(name, []string{value})); err != nil {
			return err
		}
		end := producer.AbortTxn
		if number%2 == 1 {
			end = producer.CommitTxn
		}
		if err := end(); err != nil {
			return err
		}
	}
	return errors.Join(
		readAll(ctx, address, name, []string{"1", "3", "5"}, committed()),
		readAll(ctx, address, name, Numbers(0, 6), config()))
}

func zombieFenced(ctx context.Context, address string) error {
	name, err := topic(address)
	if err != nil {
		return err
	}
	settings := exactly(NewName("transaction"))
	old, err := sarama.NewSyncProducer([]string{address}, settings)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := errors.Join(old.BeginTxn(), old.SendMessages(messages(name, []string{"old"}))); err != nil {
		return err
	}
	successor, err := sarama.NewSyncProducer([]string{address}, settings)
	if err != nil {
		return err
	}
	defer successor.Close()
	err = errors.Join(
		successor.BeginTxn(), successor.SendMessages(messages(name, []string{"new"})), successor.CommitTxn())
	if err != nil {
		return err
	}
	if old.CommitTxn() == nil {
		return errors.New("the older producer committed")
	}
	return readAll(ctx, address, name, []string{"new"}, committed())
}
