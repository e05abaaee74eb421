import com.sun.net.httpserver.HttpServer;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.StandardWatchEventKinds;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;

/** Threads, garbage, a server and its client, children, mapped files, file watching. */
public class Honest {
    static void collect() {
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 20_000; i++) {
            byte[] garbage = new byte[20_000];
            if (i % 1000 == 0) kept.add(garbage);
        }
        System.gc();
        long collections = ManagementFactory.getGarbageCollectorMXBeans().stream()
            .mapToLong(bean -> bean.getCollectionCount()).sum();
        System.out.println("collected " + (collections > 0) + " " + kept.size());
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            collect();
            return;
        }
        var pool = Executors.newFixedThreadPool(8);
        List<Future<Long>> futures = new ArrayList<>();
        for (int n = 0; n < 40; n++) {
            long from = n;
            futures.add(pool.submit(() -> LongStream.range(from, from + 100_000).sum() % 1000));
        }
        long total = 0;
        for (var future : futures) total += future.get();
        pool.shutdown();
        System.out.println("threads " + total + " " + pool.awaitTermination(10, TimeUnit.SECONDS));
        System.out.println("parallel " + LongStream.range(0, 1_000_000).parallel().filter(n -> n % 7 == 0).count());

        var server = HttpServer.create(new InetSocketAddress("localhost", 0), 0);
        server.createContext("/", exchange -> {
            byte[] body = ("path " + exchange.getRequestURI()).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        var uri = URI.create("http://localhost:" + server.getAddress().getPort() + "/x");
        var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
        System.out.println("http " + answer.statusCode() + " " + answer.body());
        server.stop(0);

        var child = new ProcessBuilder("sh", "-c", "echo child").start();
        System.out.println("child " + new String(child.getInputStream().readAllBytes()).trim() + " " + child.waitFor());

        Path file = Files.createTempFile("honest", null);
        try (var channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            map.put(12345, (byte) 42);
            map.force();
        }
        System.out.println("mapped " + Files.readAllBytes(file)[12345]);

        Path dir = Files.createTempDirectory("watched");
        try (var watcher = dir.getFileSystem().newWatchService()) {
            dir.register(watcher, StandardWatchEventKinds.ENTRY_CREATE);
            Files.createFile(dir.resolve("made"));
            System.out.println("watch " + watcher.poll(20, TimeUnit.SECONDS).pollEvents().get(0).context());
        }
        System.exit(0);
    }
}
