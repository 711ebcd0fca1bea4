// franz-go.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	. "mainstem.interop/scenario"
)

func main() {
	Run(map[string]Play{
		"round trip": roundTrip, "idempotent producer": idempotentProducer, "consumer group": consumerGroup,
		"two members": twoMembers, "offsets by time": offsetsByTime, "topics and configs": topicsAndConfigs,
		"groups administered": groupsAdministered, "delete records": deleteRecords, "transactions": transactions,
		"transactional copy": transactionalCopy, "zombie fenced": zombieFenced,
	})
}

func client(address string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}, options...)...)
}

func topic(ctx context.Context, address string, partitions int32, configs map[string]*string) (string, error) {
	one, err := client(address)
	if err != nil {
		return "", err
	}
	defer one.Close()
	name := NewName("topic")
	answer, err := kadm.NewClient(one).CreateTopic(ctx, partitions, 1, configs, name)
	return name, errors.Join(err, answer.Err)
}

// records are numbers, a second of event time apart.
func records(topic string, count int) []*kgo.Record {
	var all []*kgo.Record
	for number, value := range Numbers(0, count) {
		all = append(all, &kgo.Record{
			Topic: topic, Value: []byte(value), Timestamp: time.UnixMilli(1_700_000_000_000 + 1_000*int64(number)),
		})
	}
	return all
}

func send(ctx context.Context, address, topic string, count int, options ...kgo.Opt) error {
	producer, err := client(address, options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.ProduceSync(ctx, records(topic, count)...).FirstErr()
}

func take(ctx context.Context, consumer interface {
	PollFetches(context.Context) kgo.Fetches
}, count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, Max)
	defer cancel()
	var values []string
	for len(values) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return values, fmt.Errorf("%d of %d messages: %w", len(values), count, err)
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values, nil
}

// readAll expects these values in partition 0, from its beginning.
func readAll(ctx context.Context, address, topic string, expected []string, options ...kgo.Opt) error {
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	consumer, err := client(address, append(options, kgo.ConsumePartitions(from))...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	found, err := take(ctx, consumer, len(expected))
	if err != nil {
		return err
	}
	return Same(found, expected, "messages")
}

func roundTrip(ctx context.Context, address string) error {
	for _, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		name, err := topic(ctx, address, 1, nil)
		if err == nil {
			err = send(ctx, address, name, 100, kgo.ProducerBatchCompression(codec))
		}
		if err == nil {
			err = readAll(ctx, address, name, Numbers(0, 100))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func idempotentProducer(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	if err == nil {
		err = send(ctx, address, name, 1_000, kgo.ProducerBatchMaxBytes(1_000))
	}
	if err != nil {
		return err
	}
	return readAll(ctx, address, name, Numbers(0, 1_000))
}

func consumerGroup(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	if err == nil {
		err = send(ctx, address, name, 10)
	}
	if err != nil {
		return err
	}
	group := NewName("group")
	for _, expected := range [][]string{Numbers(0, 4), Numbers(4, 10)} {
		member, err := client(address, kgo.ConsumerGroup(group), kgo.ConsumeTopics(name), kgo.DisableAutoCommit())
		if err != nil {
			return err
		}
		var found []string
		for len(found) < len(expected) && ctx.Err() == nil {
			fetches := member.PollRecords(ctx, len(expected)-len(found))
			for _, record := range fetches.Records() {
				found = append(found, string(record.Value))
			}
			if err := member.CommitRecords(ctx, fetches.Records()...); err != nil {
				return err
			}
		}
		member.Close()
		if err := Same(found, expected, "messages of one member"); err != nil {
			return err
		}
	}
	return nil
}

func twoMembers(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 6, nil)
	if err != nil {
		return err
	}
	group := NewName("group")
	ctx, cancel := context.WithTimeout(ctx, Max)
	defer cancel()
	changed := make(chan struct{}, 100)
	held := make([]func() int, 2)
	for number := range held {
		partitions := map[int32]bool{}
		counts := make(chan int, 100)
		member, err := client(address, kgo.ConsumerGroup(group), kgo.ConsumeTopics(name),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
				for _, partition := range got[name] {
					partitions[partition] = true
				}
				counts <- len(partitions)
				changed <- struct{}{}
			}),
			kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
				for _, partition := range lost[name] {
					delete(partitions, partition)
				}
				counts <- len(partitions)
				changed <- struct{}{}
			}))
		if err != nil {
			return err
		}
		defer member.Close()
		latest := 0
		held[number] = func() int {
			for {
				select {
				case latest = <-counts:
				default:
					return latest
				}
			}
		}
		go func() {
			for ctx.Err() == nil {
				member.PollFetches(ctx)
			}
		}()
	}
	for held[0]() != 3 || held[1]() != 3 {
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("members hold %d and %d of 6 partitions", held[0](), held[1]())
		}
	}
	return nil
}

func offsetsByTime(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	if err == nil {
		err = send(ctx, address, name, 10, kgo.ProducerBatchMaxBytes(512))
	}
	one, failed := client(address)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	defer one.Close()
	offsets, err := kadm.NewClient(one).ListOffsetsAfterMilli(ctx, 1_700_000_004_500, name)
	if err != nil {
		return err
	}
	at, _ := offsets.Lookup(name, 0)
	return errors.Join(at.Err, Same(at.Offset, int64(5), "the offset at a time"))
}

func topicsAndConfigs(ctx context.Context, address string) error {
	first, second := "7200000", "3600000"
	name, err := topic(ctx, address, 1, map[string]*string{"retention.ms": &first})
	one, failed := client(address)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	defer one.Close()
	admin := kadm.NewClient(one)
	grown, err := admin.CreatePartitions(ctx, 2, name)
	if err == nil {
		err = grown.Error()
	}
	if err != nil {
		return err
	}
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &second}}, name)
	if err != nil {
		return err
	}
	for _, each := range altered {
		if each.Err != nil {
			return each.Err
		}
	}
	told, err := admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return err
	}
	for _, config := range told[0].Configs {
		if config.Key == "retention.ms" {
			if err := Same(config.MaybeValue(), second, "retention"); err != nil {
				return err
			}
		}
	}
	details, err := admin.ListTopics(ctx, name)
	if err != nil {
		return err
	}
	if err := Same(len(details[name].Partitions), 3, "partitions"); err != nil {
		return err
	}
	gone, err := admin.DeleteTopics(ctx, name)
	return errors.Join(err, gone.Error())
}

func groupsAdministered(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	one, failed := client(address)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	defer one.Close()
	admin := kadm.NewClient(one)
	group := NewName("group")
	var wanted kadm.Offsets
	wanted.AddOffset(name, 0, 7, -1)
	if err := admin.CommitAllOffsets(ctx, group, wanted); err != nil {
		return err
	}
	found, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	at, _ := found.Lookup(name, 0)
	if err := Same(at.At, int64(7), "the committed offset"); err != nil {
		return err
	}
	gone, err := admin.DeleteGroups(ctx, group)
	return errors.Join(err, gone.Error())
}

func deleteRecords(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	if err == nil {
		err = send(ctx, address, name, 20, kgo.ProducerBatchMaxBytes(512))
	}
	one, failed := client(address)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	defer one.Close()
	var before kadm.Offsets
	before.AddOffset(name, 0, 15, -1)
	answers, err := kadm.NewClient(one).DeleteRecords(ctx, before)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return err
	}
	return readAll(ctx, address, name, Numbers(15, 20))
}

var committed = kgo.FetchIsolationLevel(kgo.ReadCommitted())

func transactions(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	producer, failed := client(address, kgo.TransactionalID(NewName("transaction")))
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	defer producer.Close()
	for number, value := range Numbers(0, 6) {
		if err := producer.BeginTransaction(); err != nil {
			return err
		}
		err := producer.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte(value)}).FirstErr()
		if err == nil {
			err = producer.EndTransaction(ctx, kgo.TransactionEndTry(number%2 == 1))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(
		readAll(ctx, address, name, []string{"1", "3", "5"}, committed), readAll(ctx, address, name, Numbers(0, 6)))
}

// transactionalCopy reads one topic and writes another, offsets within the transaction; the first try is aborted.
func transactionalCopy(ctx context.Context, address string) error {
	from, err := topic(ctx, address, 1, nil)
	to, failed := topic(ctx, address, 1, nil)
	if err = errors.Join(err, failed); err == nil {
		err = send(ctx, address, from, 10)
	}
	if err != nil {
		return err
	}
	group, id := NewName("group"), NewName("transaction")
	for _, commits := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(address), kgo.TransactionalID(id), committed, kgo.ConsumerGroup(group),
			kgo.ConsumeTopics(from), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets())
		if err != nil {
			return err
		}
		found, err := take(ctx, session, 10)
		if err == nil {
			err = Same(found, Numbers(0, 10), "read from the last commit on")
		}
		if err == nil {
			err = session.Begin()
		}
		if err == nil {
			err = session.ProduceSync(ctx, records(to, 10)...).FirstErr()
		}
		if err == nil {
			var ended bool
			ended, err = session.End(ctx, commits)
			err = errors.Join(err, Same(ended, bool(commits), "committed"))
		}
		session.Close()
		if err != nil {
			return err
		}
	}
	return readAll(ctx, address, to, Numbers(0, 10), committed)
}

func zombieFenced(ctx context.Context, address string) error {
	name, err := topic(ctx, address, 1, nil)
	id := kgo.TransactionalID(NewName("transaction"))
	old, failed := client(address, id)
	successor, failedToo := client(address, id)
	if err = errors.Join(err, failed, failedToo); err != nil {
		return err
	}
	defer old.Close()
	defer successor.Close()
	err = old.BeginTransaction()
	if err == nil {
		err = old.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("old")}).FirstErr()
	}
	if err == nil {
		err = successor.BeginTransaction()
	}
	if err == nil {
		err = successor.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("new")}).FirstErr()
	}
	if err == nil {
		err = successor.EndTransaction(ctx, kgo.TryCommit)
	}
	if err != nil {
		return err
	}
	err = old.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("the older producer was not fenced: %v", err)
	}
	return readAll(ctx, address, name, []string{"new"}, committed)
}
